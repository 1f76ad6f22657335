"""Tests of duel.py: ratios are taken per pair and reported; expected numbers are computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tables import case_table
from rlcore_tools.bench.duel import Duel, RunFailed, measure, spread, summarise

PROGRAM = """
import json, sys, os
name, repeat, speed = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
with open("order.txt", "a") as file:
    file.write(f"{name}{repeat} ")
print("some other line")
print(json.dumps({"speed": speed * (repeat + 1), "threads": os.environ["OMP_NUM_THREADS"], "peak_rss_mb": 10 + repeat,
                  "colour": os.environ.get("COLOUR")}))
"""


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    """Write programs to a temporary folder."""
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "broken.py").write_text("import sys; sys.exit('no such thing as a snark')")
    (tmp_path / "silent.py").write_text("print('all went well')")
    return tmp_path


def pairs_of(figure: str, ours: list[Any], theirs: list[Any]) -> list[dict[str, dict[str, Any]]]:
    return [{"ours": {figure: a}, "theirs": {figure: b}} for a, b in zip(ours, theirs, strict=True)]


def test_the_ratio_is_taken_pair_by_pair() -> None:
    # the machine is half as fast in the second pair: ratios 2, 2, 4, their median 2, not 8 / 3
    summary = summarise(Duel("d", ["a"], ["b"]), pairs_of("wall_s", [2.0, 8.0, 12.0], [1.0, 4.0, 3.0]))
    assert summary["ratio"] == {"median": 2.0, "min": 2.0, "max": 4.0}
    assert summary["ours"] == {"median": 8.0, "min": 2.0, "max": 12.0}
    assert summary["theirs"] == {"median": 3.0, "min": 1.0, "max": 4.0}


@pytest.mark.parametrize(("better", "goal", "reached"), [
    ("less", 2.0, True), ("less", 1.9, False), ("more", 2.0, True), ("more", 2.1, False), ("less", None, None),
])  # fmt: skip
def test_a_goal_bounds_the_ratio_on_the_side_that_is_better(better: Any, goal: float | None, reached: Any) -> None:
    pairs = pairs_of("wall_s", [2.0, 8.0, 12.0], [1.0, 4.0, 3.0])
    assert summarise(Duel("d", ["a"], ["b"], better=better, goal=goal), pairs)["reached"] is reached


def test_a_goal_for_our_own_figure_must_be_reached_besides_that_for_the_ratio() -> None:
    pairs = pairs_of("wall_s", [0.03, 0.05, 0.04], [0.1, 0.1, 0.1])
    for own_goal, reached in ((0.04, True), (0.039, False)):
        assert summarise(Duel("d", ["a"], ["b"], goal=0.4, own_goal=own_goal), pairs)["reached"] is reached
    assert summarise(Duel("d", ["a"], ["b"], goal=0.3, own_goal=0.04), pairs)["reached"] is False


def test_a_level_that_was_never_reached_counts_as_the_worst_value_and_has_no_ratio() -> None:
    summary = summarise(Duel("d", ["a"], ["b"], own_goal=9.0), pairs_of("wall_s", [8.0, None, 6.0], [4.0, 4.0, None]))
    assert summary["ours"] == {"median": 8.0, "min": 6.0, "max": None}
    assert summary["ratio"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    never = summarise(Duel("d", ["a"], ["b"], own_goal=9.0), pairs_of("wall_s", [None], [4.0]))
    assert never["ratio"] is None
    assert never["reached"] is False
    json.dumps(never, allow_nan=False)
    most = summarise(Duel("d", ["a"], better="more", own_goal=1.0), [{"ours": {"wall_s": None}}])
    assert most["ours"]["median"] == 0
    assert most["reached"] is False


def test_the_ratio_of_cpu_times_is_reported_beside_that_of_wall_times() -> None:
    pairs = [{"ours": {"wall_s": 9.0, "cpu_s": 2.0}, "theirs": {"wall_s": 3.0, "cpu_s": 1.0}}]
    summary = summarise(Duel("d", ["a"], ["b"], cpu_figure="cpu_s"), pairs)
    assert (summary["ratio"]["median"], summary["cpu"]["ratio"]["median"]) == (3.0, 2.0)


def test_other_figures_of_the_same_runs_are_summed_up_and_shown_in_rows_of_their_own() -> None:
    pairs = [
        {"ours": {"wall_s": 2.0, "end": 0.9}, "theirs": {"wall_s": 1.0, "end": 0.5}},
        {"ours": {"wall_s": 2.0, "end": None}, "theirs": {"wall_s": 1.0, "end": 0.7}},
    ]
    summary = summarise(Duel("d", ["a"], ["b"], others={"end": "more"}), pairs)
    assert summary["others"]["end"]["ours"] == {"median": 0.45, "min": 0.0, "max": 0.9}
    assert summary["others"]["end"]["ratio"] == {"median": 1.8, "min": 1.8, "max": 1.8}
    table = case_table("c", {"title": "t", "duels": {"d": summary}})
    assert [list(column.cells) for column in table.columns[:4]] == [
        ["d", ""], ["wall_s", "end"], ["2", "0.45 (0 .. 0.9)"], ["1", "0.6 (0.5 .. 0.7)"],
    ]  # fmt: skip


def test_other_figures_have_goals_of_their_own() -> None:
    pairs = [{"ours": {"wall_s": 2.0, "mb": 6.0}, "theirs": {"wall_s": 1.0, "mb": 10.0}}]
    for bound, reached in ((0.6, True), (0.59, False)):
        goals: dict[str, Any] = {"goal": 1.0, "others": {"mb": "less"}, "other_goals": {"mb": bound}}
        summary = summarise(Duel("d", ["a"], ["b"], **goals), pairs)
        assert (summary["reached"], summary["others"]["mb"]["reached"]) == (False, reached)
    table = case_table("c", {"title": "t", "duels": {"d": summary}})
    assert [list(column.cells) for column in table.columns[6:8]] == [["<= 1x", "<= 0.59x"], ["no", "no"]]


def test_a_spread_is_the_median_between_the_least_and_the_most() -> None:
    assert spread([3.0, 1.0, 2.0, 10.0]) == {"median": 2.5, "min": 1.0, "max": 10.0}


def test_two_programs_run_in_turn_with_one_thread_and_every_second_pair_the_other_way_round(scripts: Path) -> None:
    ours, theirs = (["program.py", name, "{repeat}", speed] for name, speed in (("a", "6"), ("b", "2")))
    told: list[str] = []
    fight = Duel("d", ours, theirs, figure="speed", better="more", goal=2.5, environment={"COLOUR": "blue"})
    result = measure(fight, scripts, scripts=scripts, repeats=3, told=told.append)
    assert (scripts / "order.txt").read_text().split() == ["a0", "b0", "b1", "a1", "a2", "b2"]
    assert result["ratio"] == {"median": 3.0, "min": 3.0, "max": 3.0}
    assert result["reached"] is True
    assert result["ours"] == {"median": 12.0, "min": 6.0, "max": 18.0}
    assert result["peak_rss_mb"] == {"ours": 12, "theirs": 12}
    assert {run[side]["threads"] for run in result["runs"] for side in run} == {"1"}
    assert {run[side]["colour"] for run in result["runs"] for side in run} == {"blue"}
    assert len(told) == 6


def test_a_program_without_an_opponent_is_measured_alone(scripts: Path) -> None:
    result = measure(Duel("d", ["program.py", "a", "0", "6"], figure="speed"), scripts, scripts=scripts, repeats=1)
    assert result["ours"]["median"] == 6.0
    assert "theirs" not in result
    assert result["reached"] is None


@pytest.mark.parametrize(("script", "said"), [
    ("broken.py", "no such thing as a snark"), ("silent.py", "all went well"), ("program.py", "no figure 'height'"),
])  # fmt: skip
def test_a_program_that_fails_or_prints_no_figures_is_named(scripts: Path, script: str, said: str) -> None:
    with pytest.raises(RunFailed, match=said) as failure:
        measure(Duel("d", [script, "a", "0", "1"], figure="height"), scripts, scripts=scripts, repeats=1)
    assert script in str(failure.value)
