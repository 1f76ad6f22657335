"""A manual clock, a profile that uses it, steps of known durations, and checks that hold for every trace."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hand_clock import MS, Clock

from rlcore_report.profile.recorder import PhaseRow, Profile, Stretch


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def profile(clock: Clock) -> Profile:
    return Profile(clock=clock)


def in_ms(rows: dict[Any, PhaseRow]) -> dict[Any, tuple[float, float, int]]:
    """Return rows as (total, self, calls) in milliseconds."""
    return {path: (row.total / MS, row.own / MS, row.calls) for path, row in rows.items()}


def add_up(stretch: Stretch) -> int:
    """Return the sum of all top-level phases and the time outside any phase."""
    return sum(row.total for path, row in stretch.rows.items() if len(path) == 1) + stretch.other


def take_turns(one: AbstractContextManager, other: AbstractContextManager, clock: Clock) -> None:
    """Advance the clock from two interleaved coroutines: 1 ms in the first, 2 ms in both, 4 ms in the second alone."""
    one.__enter__()
    clock.spend(1)
    other.__enter__()
    clock.spend(2)
    one.__exit__(None, None, None)
    clock.spend(4)
    other.__exit__(None, None, None)


def one_step(profile: Profile, clock: Clock) -> None:
    """Spend a step: generate 10 (score 3 of them), none 2, evaluate 20 (generate 5 + 4, of which score 1), none 1."""
    with profile.phase("generate"):
        clock.spend(6)
        with profile.phase("score"):
            clock.spend(3)
            profile.count_tokens(12)
        clock.spend(1)
    clock.spend(2)
    with profile.phase("evaluate"):
        with profile.phase("generate"):
            clock.spend(5)
        clock.spend(11)
        with profile.phase("generate"):
            clock.spend(3)
            with profile.phase("score"):
                clock.spend(1)
    clock.spend(1)


def assert_nested(trace: dict[str, Any]) -> None:
    """Check that of two events on a track, one contains the other or they do not overlap, as trace viewers require."""
    tracks: dict[Any, list[tuple[float, float]]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in tracks.values():
        assert spans == sorted(spans, key=lambda span: (span[0], -span[1]))
        open_: list[float] = []
        for begun, ended in spans:
            while open_ and open_[-1] <= begun:
                open_.pop()
            assert not open_ or ended <= open_[-1]
            open_.append(ended)
