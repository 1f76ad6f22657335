"""Tests of the share of a step covered by its named phases, with clocks independent of machine load."""

from __future__ import annotations

import functools
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_plugins import TRAINER, Plugins, plugins
from e2e_scenarios import scenario
from hand_clock import MS, Clock

import rlcore
from rlcore_report.profile import session
from rlcore_report.profile.recorder import Profile

__all__ = ["plugins"]  # a fixture

WATCH = """
clock, marks = None, []


@hookimpl
def on_step(run, metrics):
    marks.append(clock())
"""
WAITING = """
class Waiting:
    def __init__(self, options, run):
        pass

    def metrics(self, step, metrics):
        spend(5)

    def completions(self, step, rows):
        pass

    def close(self, error):
        pass


@hookimpl
def register_loggers(register):
    register("waiting", Waiting)


@hookimpl
def on_step(run, metrics):
    spend(2)
"""


class Calls:
    """A clock that counts the Python and C function calls of this thread, one millisecond each."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now * MS

    def count(self, frame: Any, event: str, argument: Any) -> None:
        self.now += event in ("call", "c_call")


@pytest.fixture
def calls() -> Iterator[Calls]:
    clock = Calls()
    before = sys.getprofile()
    sys.setprofile(clock.count)
    yield clock
    sys.setprofile(before)


def train(name: str, folder: Path, trainer: Any, **changes: Any) -> dict[str, Any]:
    """Train for 5 steps, with nothing due after steps 2 to 4, and return the profile of steps 2 to 5."""
    never = {"eval": {"every": 0}, "checkpoint": {"every": 0}}
    given = scenario(name, folder, "run", {"run": {"steps": 5, "profile": True}, **never})
    rlcore.train(given.pop("model"), **{**given, "trainer": trainer or given["trainer"], **changes})
    steps: dict[str, Any] = json.loads((folder / "run/profile/phases.json").read_text())["steps"]
    assert steps["num_steps"] == 4
    return steps


def by_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    monkeypatch.setattr(session, "Profile", functools.partial(Profile, clock=clock))


ILQL = {"name": "ilql", "batch_size": 4, "micro_batch_size": 2}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainer", "changes"),
    [
        ("ppo_plain", None, {}),
        ("sft_plain", None, {}),
        ("sft_plain", ILQL, {"samples": ["abc", "bcd", "cde", "def"], "rewards": [1.0, 0.0, 2.0, -1.0]}),
        ("ppo_plain", {"name": "rft", "generations": 4}, {}),
        ("ppo_plain", "own", {}),
    ],
    ids=["ppo", "sft", "ilql", "rft", "own"],
)
def test_named_phases_hold_nearly_all_of_a_step_whatever_the_trainer(
    name: str, trainer: Any, changes: dict[str, Any], tmp_path: Path, plugins: Plugins,
    monkeypatch: pytest.MonkeyPatch, calls: Calls,
) -> None:  # fmt: skip
    plugins.install("acme-watch", WATCH)
    watch = importlib.import_module("acme_watch")
    watch.clock = calls
    if trainer == "own":
        plugins.install("acme-own", TRAINER + WAITING)
    by_clock(monkeypatch, calls)
    steps = train(name, tmp_path, trainer, **changes)
    marks = watch.marks
    between = (marks[-1] - marks[0]) / 1e9  # the ends of steps 1 and 5, recorded independently of the profile
    named = sum(row["total_s"] for row in steps["phases"] if len(row["path"]) == 1)
    assert named == pytest.approx(between, rel=0.03)
    assert sum(row["self_s"] for row in steps["phases"]) == pytest.approx(named)


def test_the_known_time_of_each_part_of_a_run_is_reported_under_its_name(
    tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    plugins.install("acme-own", TRAINER + WAITING)
    importlib.import_module("acme_own").spend = clock.spend

    def judge(outputs: list[str]) -> list[float]:
        clock.spend(11)
        return [float(len(output)) for output in outputs]

    by_clock(monkeypatch, clock)
    steps = train("ppo_plain", tmp_path, "own", reward_fn=judge, loggers=["waiting"], eval={"every": 0})
    found = {"/".join(row["path"]): (row["total_s"], row["self_s"]) for row in steps["phases"] if row["total_s"]}
    assert {path: (round(1000 * total / 4), round(1000 * own / 4)) for path, (total, own) in found.items()} == {
        "trainer": (60, 60), "reward": (11, 0), "reward/reward functions": (11, 0),
        "reward/reward functions/judge": (11, 11), "hooks": (2, 0), "hooks/acme-own:main": (2, 2),
        "log": (5, 0), "log/acme-own:waiting": (5, 5),
    }  # fmt: skip
    assert (steps["wall_s"], steps["other_s"]) == (pytest.approx(4 * 0.078), 0)
