"""Tests of learning_runs.py: what several runs amount to, and one short run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks import learning_runs
from benchmarks.hand_ppo import make_base
from benchmarks.learning_runs import learn, summary


def run(iterations: int | None, cpu_s: float | None, end: float) -> dict[str, float | None]:
    return {
        "iterations_to_95": iterations, "cpu_s_to_95": cpu_s, "end_score": end, "cpu_s_per_iteration": 0.5,
        "peak_rss_mb": 400.0,
    }  # fmt: skip


def test_a_run_that_never_reached_the_level_is_the_slowest() -> None:
    found = summary([run(20, 8.0, 0.97), run(10, 4.0, 0.94), run(None, None, 0.9)])
    assert (found["runs"], found["reached"], found["ended_there"]) == (3, 2, 1)
    assert (found["iterations_to_95"], found["cpu_s_to_95"]) == (20, 8.0)
    assert (found["end_score"], found["lowest_end_score"]) == (0.94, 0.9)
    most = summary([run(20, 8.0, 0.97), run(None, None, 0.9), run(None, None, 0.9)])
    assert (most["iterations_to_95"], most["cpu_s_to_95"]) == (None, None)


@pytest.mark.slow
def test_a_short_run_reports_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_runs, "make_base", partial(make_base, tiny=True))  # the full size takes half a minute
    found = learn(tmp_path, graph_seed=9, seed=0, iterations=1)
    assert len(found["scores"]) == 1
    assert 0.1 < found["end_score"] < 0.95
    assert found["iterations_to_95"] is None
