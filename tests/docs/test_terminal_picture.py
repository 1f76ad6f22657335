"""Laws of the picture of a terminal in the README: it shows what stays on the screen, and fetches nothing."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.append(str(DOCS))
make_terminal_picture = pytest.importorskip("make_terminal_picture", reason="pseudo-terminals or rich are missing")


def texts_of(svg: str) -> str:
    found = re.findall(r"<text [^>]*>(.*?)</text>", svg)
    return html.unescape(" ".join(found)).replace("\xa0", " ")


def test_lines_are_those_that_stay_on_the_screen_and_colours_are_kept() -> None:
    program = r"import sys; print('\x1b[32mgreen\x1b[0m', sys.stdout.isatty()); print('50 %\r\x1b[2Kdone')"
    lines = make_terminal_picture.printed_by([sys.executable, "-c", program])
    assert lines == ["\x1b[32mgreen\x1b[0m True", "done", ""]
    svg = make_terminal_picture.draw(lines)
    assert "green" in texts_of(svg)
    assert "50" not in texts_of(svg)
    assert "@font-face" not in svg


def test_a_line_longer_than_the_terminal_goes_on_in_the_next() -> None:
    svg = make_terminal_picture.draw(["x" * make_terminal_picture.WIDTH + "and all of its end)"])
    assert texts_of(svg).count("x" * make_terminal_picture.WIDTH) == 1
    assert "and all of its end)" in texts_of(svg)


def test_a_command_that_fails_draws_nothing() -> None:
    with pytest.raises(SystemExit, match="no such graph"):
        make_terminal_picture.printed_by([sys.executable, "-c", "raise SystemExit('no such graph')"])


def test_the_picture_of_the_readme_shows_both_runs_and_their_table_and_refers_to_no_host() -> None:
    svg = (DOCS / "images" / "terminal.svg").read_text(encoding="utf-8")
    shown = texts_of(svg)
    for text in ("make quickstart", "150/150", "25/25", "after imitation", "optimality over"):
        assert text in shown
    assert re.search(r"completions.jsonl,\s+checkpoints/\s*\)", shown)  # the longest line is whole
    assert not re.findall(r"(?:href|src)=|url\((?!#)|@import", svg)


def test_the_picture_of_the_chat_model_shows_answers_and_measures_and_refers_to_no_host() -> None:
    svg = (DOCS / "images" / "chat.svg").read_text(encoding="utf-8")
    for text in ("make chat", "before", "after", "names the right thing, briefly", "CPU minutes"):
        assert text in texts_of(svg)
    assert not re.findall(r"(?:href|src)=|url\((?!#)|@import", svg)
