"""Tests of profiling marks: background phases, awaited calls, iterators, decorated functions, no recorder."""

from __future__ import annotations

import json
from collections.abc import Iterator

from hand_profile import MS, Clock, add_up, assert_nested, clock, in_ms, profile, take_turns

from rlcore.profiling import awaited, background, begin_step, phase, running, timed, timed_each
from rlcore_report.profile.recorder import Profile
from rlcore_report.profile.session import as_trace

__all__ = ["clock", "profile"]  # fixtures


def test_a_background_counts_only_time_that_belongs_to_no_phase(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    with profile.background("driver"):
        clock.spend(1)
        with profile.background("trainer"):
            clock.spend(2)
            with profile.phase("generate"), profile.phase("score"):
                clock.spend(4)
            clock.spend(8)
            with profile.phase("trainer"):  # already open as the background
                clock.spend(16)
        with profile.phase("log"):
            clock.spend(32)
    clock.spend(64)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {
        ("driver",): (1, 1, 1), ("trainer",): (26, 26, 1), ("generate",): (4, 0, 1), ("generate", "score"): (4, 4, 1),
        ("log",): (32, 32, 1),
    }  # fmt: skip
    assert profile.first.other == 64 * MS
    assert add_up(profile.first) == profile.first.wall == 127 * MS
    assert_nested(json.loads(as_trace(profile)))


def test_a_background_inside_a_phase_does_not_take_the_time_of_the_phase(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    with profile.phase("evaluate"):
        clock.spend(1)
        with profile.background("trainer"):
            clock.spend(2)
            with profile.phase("score"):
                clock.spend(4)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {
        ("evaluate",): (7, 1, 1), ("evaluate", "trainer"): (2, 2, 1), ("evaluate", "score"): (4, 4, 1),
    }  # fmt: skip
    assert add_up(profile.first) == 7 * MS


def test_concurrent_awaited_calls_count_in_full_outside_the_sum(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    with profile.phase("reward"):
        take_turns(profile.awaited("judge"), profile.awaited("judge"), clock)
    profile.end_steps(1)
    assert in_ms(profile.first.beside) == {("judge",): (9, 9, 2)}
    assert in_ms(profile.first.rows) == {("reward",): (7, 7, 1)}
    assert profile.first.other == 0


def test_an_iterators_time_counts_only_while_it_produces_items(profile: Profile, clock: Clock) -> None:
    @timed_each("batches")
    def count(most: int) -> Iterator[int]:
        for i in range(most):
            clock.spend(1)
            yield i
        clock.spend(2)

    assert list(count(3)) == [0, 1, 2]
    with running(profile):
        begin_step(0)
        for _ in count(2):
            clock.spend(10)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("batches",): (4, 4, 3)}
    assert profile.first.other == 20 * MS


def test_marks_do_nothing_without_a_profile(profile: Profile, clock: Clock) -> None:
    @timed("score")
    def double(number: int) -> int:
        clock.spend(number)
        return 2 * number

    begin_step(0)
    with phase("generate"):
        assert double(3) == 6
    assert phase("a") is phase("b") is background("c") is awaited("d")
    with running(profile):
        begin_step(0)
        with phase("generate"):
            assert double(4) == 8
    double(5)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("generate",): (4, 0, 1), ("generate", "score"): (4, 4, 1)}
    assert double.__name__ == "double"
