"""Tests of the recorder with a manual clock: nesting of phases and sums of their times."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hand_profile import MS, Clock, add_up, assert_nested, clock, in_ms, one_step, profile, take_turns

from rlcore.profiling import phase
from rlcore_report.profile.recorder import Profile
from rlcore_report.profile.session import as_trace

__all__ = ["clock", "profile"]  # fixtures

STEP = {
    ("generate",): (10, 7, 1),
    ("generate", "score"): (3, 3, 1),
    ("evaluate",): (20, 11, 1),
    ("evaluate", "generate"): (9, 8, 2),
    ("evaluate", "generate", "score"): (1, 1, 1),
}


def test_a_phase_is_its_own_time_and_that_of_the_phases_in_it(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    one_step(profile, clock)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == STEP
    assert (profile.first.wall, profile.first.other) == (33 * MS, 3 * MS)
    assert add_up(profile.first) == 33 * MS
    assert sum(row.own for row in profile.first.rows.values()) == 30 * MS


def test_the_first_step_and_time_outside_steps_are_reported_separately(profile: Profile, clock: Clock) -> None:
    with profile.phase("hooks"):
        clock.spend(100)
    for done in range(4):
        profile.begin_step(done)
        clock.spend(50 if done == 0 else 0)
        one_step(profile, clock)
    profile.end_steps(4)
    with profile.phase("checkpoint"):
        clock.spend(200)
    profile.end_steps(4)
    assert in_ms(profile.steps.rows) == {path: tuple(3 * each for each in row) for path, row in STEP.items()}
    assert (profile.steps.num_steps, profile.steps.first_step, profile.steps.last_step) == (3, 2, 4)
    assert (profile.steps.wall, profile.first.wall) == (99 * MS, 83 * MS)
    assert in_ms(profile.around.rows) == {("hooks",): (100, 100, 1), ("checkpoint",): (200, 200, 1)}
    assert profile.steps.wall + profile.first.wall + profile.around.wall == clock() - profile.begun


def test_an_unfinished_step_does_not_count_as_a_step(profile: Profile, clock: Clock) -> None:
    for done in range(3):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(2)
    assert (profile.first.num_steps, profile.steps.num_steps, profile.steps.last_step) == (1, 1, 2)
    assert in_ms(profile.around.rows) == STEP


def test_a_phase_nested_in_one_of_the_same_name_is_counted_once(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    with profile.phase("update"):
        with profile.phase("update"):
            clock.spend(3)
        clock.spend(4)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("update",): (7, 7, 1)}


def test_a_phase_ends_with_the_error_that_leaves_it(profile: Profile, clock: Clock) -> None:
    def interrupt() -> None:
        clock.spend(2)
        raise KeyboardInterrupt

    profile.begin_step(0)
    with pytest.raises(KeyboardInterrupt), profile.phase("generate"), profile.phase("score"):
        interrupt()
    clock.spend(5)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("generate",): (2, 0, 1), ("generate", "score"): (2, 2, 1)}
    assert profile.first.other == 5 * MS


def test_a_phase_that_spans_two_steps_counts_in_both(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    held = profile.phase("mine")
    clock.spend(1)
    held.__enter__()
    clock.spend(2)
    with profile.phase("log"):
        clock.spend(4)
        profile.begin_step(1)
        clock.spend(8)
    clock.spend(16)
    held.__exit__(None, None, None)
    profile.end_steps(2)
    assert in_ms(profile.first.rows) == {("mine",): (6, 2, 0), ("mine", "log"): (4, 4, 0)}
    assert in_ms(profile.steps.rows) == {("mine",): (24, 16, 1), ("mine", "log"): (8, 8, 1)}
    assert [add_up(stretch) for stretch in (profile.first, profile.steps)] == [7 * MS, 24 * MS]
    assert_nested(json.loads(as_trace(profile)))


def test_time_of_other_threads_is_not_part_of_the_sum(profile: Profile, clock: Clock) -> None:
    def work() -> None:
        with profile.phase("reward functions"):
            begun.set()
            done.wait(300)

    profile.begin_step(0)
    for _ in range(2):
        begun, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, name="rewards")
        thread.start()
        begun.wait(300)
        with profile.phase("generate"):
            clock.spend(10)
        with profile.phase("reward"):  # waits for the phase
            clock.spend(5)
            done.set()
            thread.join(300)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("generate",): (20, 20, 2), ("reward",): (10, 10, 2)}
    assert in_ms(profile.first.beside) == {("reward functions",): (30, 30, 2)}
    assert profile.first.wall == add_up(profile.first) == 30 * MS
    assert profile.tracks == [threading.current_thread().name, "rewards"]  # the phase continues in step 2


def test_threads_that_live_at_once_have_a_track_each(profile: Profile) -> None:
    barrier = threading.Barrier(2)

    def work() -> None:
        with profile.phase("asked"):
            barrier.wait(300)

    threads = [threading.Thread(target=work, name="twin") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert profile.tracks[1:] == ["twin", "twin"]


def test_coroutines_that_alternate_have_correct_phase_times(profile: Profile, clock: Clock) -> None:
    def work() -> None:
        take_turns(profile.phase("one"), profile.phase("other"), clock)

    profile.begin_step(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(300)
    profile.end_steps(1)
    assert {path[-1]: row.total / MS for path, row in profile.first.beside.items()} == {"one": 3, "other": 6}
    assert profile.first.other == profile.first.wall == 7 * MS


def test_the_device_is_synchronised_when_a_phase_begins_and_ends(clock: Clock) -> None:
    queued = [0]

    def wait() -> None:
        clock.spend(queued[0])
        queued[0] = 0

    profile = Profile(clock=clock, wait=wait)
    profile.begin_step(0)
    queued[0] = 2
    with profile.phase("update"):
        queued[0] = 30
    queued[0] = 4
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("update",): (30, 30, 1)}
    assert profile.first.other == 6 * MS


def test_steps_whose_operators_are_recorded_are_slow_and_do_not_count(clock: Clock) -> None:
    class Recorder:
        def begin_step(self, nth: int) -> bool:
            clock.spend(1000)
            return nth == 2

        def range(self, name: str) -> Any:
            return phase(name)  # profiling is off, so nothing is recorded

    profile = Profile(clock=clock, operators=Recorder())
    for done in range(4):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(4)
    assert (profile.first.last_step, profile.steps.first_step, profile.steps.last_step) == (1, 3, 4)
    assert (profile.first.wall, profile.steps.wall, profile.around.wall) == (33 * MS, 66 * MS, 4033 * MS)
