"""A clock fed by hand, steps of known lengths by it, and what every trace keeps to."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rlcore.profiling.phases import Profile

MS = 1_000_000


class Clock:
    """Tell the milliseconds that a test lets pass, as nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now * MS

    def spend(self, ms: int) -> None:
        self.now += ms


def one_step(profile: Profile, clock: Clock) -> None:
    """Let pass: generate 10 (score 3 of them), nothing 2, evaluate 20 (generate 5 + 4, of which score 1), nothing 1."""
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
    """Check what viewers ask for: of two events on a track one lies within the other, or they do not meet."""
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
