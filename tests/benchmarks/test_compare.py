"""Tests of compare.py: results are compared duel by duel, and changes larger than the spread are marked."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import compare
from benchmarks.compare import compared, rows, verdict


def around(median: float, least: float, most: float) -> dict[str, float]:
    return {"median": median, "min": least, "max": most}


@pytest.mark.parametrize(("second", "better", "expected"), [
    (around(1.5, 1.4, 1.6), "less", (1.5, "WORSE")),
    (around(1.5, 1.4, 1.6), "more", (1.5, "BETTER")),
    (around(0.5, 0.4, 0.6), "less", (0.5, "BETTER")),
    (around(1.25, 1.2, 1.3), "less", (1.25, "within the spread")),  # .25 is no more than the first's 1.1 - .85
    (around(1.5, 1.0, 1.6), "less", (1.5, "within the spread")),  # .5 is no more than its own 1.6 - 1
])  # fmt: skip
def test_a_ratio_is_marked_where_it_moved_by_more_than_the_wider_spread(
    second: dict[str, float], better: str, expected: tuple[float, str]
) -> None:
    assert verdict(around(1.0, 0.85, 1.1), second, better) == expected


def test_without_repeats_nothing_is_marked() -> None:
    assert verdict(around(1.0, 1.0, 1.0), around(2.0, 2.0, 2.0), "less") == (2.0, "one run each")


def test_the_ratio_is_compared_and_our_figure_only_where_it_stands_alone() -> None:
    ours, theirs, ratio = around(9, 9, 9), around(3, 3, 3), around(3, 3, 3)
    assert compared({"ours": ours, "theirs": theirs, "ratio": ratio}) == ratio
    assert compared({"ours": ours}) == ours
    assert compared({"failure": "it broke"}) is None
    assert compared({"ours": {**ours, "max": None}}) is None
    assert compared({"ours": ours, "theirs": theirs, "ratio": None}) is None


def sitting(**duels: Any) -> dict[str, Any]:
    return {"torch": "2.13", "cases": {"case": {"title": "t", "duels": duels}}}


def test_every_duel_of_either_sitting_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(ratio: float) -> dict[str, Any]:
        spread = around(ratio, ratio - 0.01, ratio + 0.01)
        return {"better": "less", "ours": spread, "theirs": spread, "ratio": spread}

    first = sitting(both=row(1.0), gone=row(2.0), broken=row(1.0))
    second = sitting(both=row(1.5), new=row(3.0), broken={"failure": "it broke"}) | {"torch": "2.14"}
    assert [name for _, name, _, _ in rows(first, second)] == ["both", "gone", "broken", "new"]
    for name, content in (("a.json", first), ("b.json", second)):
        (tmp_path / name).write_text(json.dumps(content))
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    compare.main()
    shown = {line.split("│")[2].strip(): line for line in capsys.readouterr().out.splitlines() if "│" in line}
    assert "WORSE" in shown["both"]
    assert "1.5" in shown["both"]
    assert "nothing in B" in shown["gone"]
    assert "nothing in A" in shown["new"]
    assert "nothing in B" in shown["broken"]


def test_a_comparison_names_the_versions_that_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, version in (("a.json", "2.13"), ("b.json", "2.14")):
        (tmp_path / name).write_text(json.dumps(sitting() | {"torch": version}))
    monkeypatch.setattr(sys, "argv", ["compare.py", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    compare.main()
    assert "torch differs: 2.13 in A, 2.14 in B" in capsys.readouterr().out
