"""The colours of the page are told apart from what is behind them: WCAG 2.1 asks for a contrast of 4.5 for text."""

from __future__ import annotations

import itertools
import re
from importlib.resources import files

import pytest

TEXTS = ("text", "dim", "good", "warning", "bad", "accent", *(f"c{i}" for i in range(8)))


def schemes() -> list[dict[str, str]]:
    """Return the colours of the light and of the dark page."""
    style = (files("rlcore_report") / "page" / "page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    assert len(blocks) == 2
    return [dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6});", block)) for block in blocks]


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.1 of a colour such as #fff or #1f5fd0."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted([luminance(a), luminance(b)], reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_formula_agrees_with_the_standard() -> None:
    assert contrast("#fff", "#000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("scheme", [0, 1])
def test_text_and_lines_have_a_contrast_of_four_and_a_half(scheme: int) -> None:
    colours = schemes()[scheme]
    for name, behind in itertools.product(TEXTS, ("back", "soft")):
        assert contrast(colours[name], colours[behind]) >= 4.5, (name, behind)
