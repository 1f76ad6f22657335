"""Phases by a clock fed by hand: what is within what, and what adds up to what."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hand_clock import MS, Clock, assert_nested, one_step

from rlcore.profiling import phase
from rlcore.profiling.marks import awaited, background, begin_step, running, timed, timed_each
from rlcore.profiling.phases import Profile
from rlcore.profiling.report import as_trace
from rlcore.profiling.stretches import Row, Stretch


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def profile(clock: Clock) -> Profile:
    return Profile(clock=clock)


def in_ms(rows: dict[Any, Row]) -> dict[Any, tuple[float, float, int]]:
    """Show rows as (total, self, calls)."""
    return {path: (row.total / MS, row.own / MS, row.calls) for path, row in rows.items()}


def add_up(stretch: Stretch) -> int:
    """Add what phases that lie in no other took to what none took."""
    return sum(row.total for path, row in stretch.rows.items() if len(path) == 1) + stretch.other


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


def test_the_first_step_and_what_is_no_step_stand_apart(profile: Profile, clock: Clock) -> None:
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


def test_a_step_that_does_not_come_to_its_end_is_no_step(profile: Profile, clock: Clock) -> None:
    for done in range(3):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(2)
    assert (profile.first.num_steps, profile.steps.num_steps, profile.steps.last_step) == (1, 1, 2)
    assert in_ms(profile.around.rows) == STEP


def test_within_a_phase_of_its_name_a_phase_is_a_part_of_that(profile: Profile, clock: Clock) -> None:
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


def test_a_phase_that_is_open_between_two_steps_counts_in_both(profile: Profile, clock: Clock) -> None:
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


def test_what_goes_on_in_another_thread_is_no_part_of_the_sum(profile: Profile, clock: Clock) -> None:
    def work() -> None:
        with profile.phase("reward functions"):
            begun.set()
            done.wait(10)

    profile.begin_step(0)
    for _ in range(2):
        begun, done = threading.Event(), threading.Event()
        thread = threading.Thread(target=work, name="rewards")
        thread.start()
        begun.wait(10)
        with profile.phase("generate"):
            clock.spend(10)
        with profile.phase("reward"):  # waits for it
            clock.spend(5)
            done.set()
            thread.join(10)
    profile.end_steps(1)
    assert in_ms(profile.first.rows) == {("generate",): (20, 20, 2), ("reward",): (10, 10, 2)}
    assert in_ms(profile.first.beside) == {("reward functions",): (30, 30, 2)}
    assert profile.first.wall == add_up(profile.first) == 30 * MS
    assert profile.tracks == [threading.current_thread().name, "rewards"]  # the second goes on with the first's


def test_threads_that_live_at_once_have_a_track_each(profile: Profile) -> None:
    barrier = threading.Barrier(2)

    def work() -> None:
        with profile.phase("asked"):
            barrier.wait(10)

    threads = [threading.Thread(target=work, name="twin") for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert profile.tracks[1:] == ["twin", "twin"]


def test_coroutines_that_take_turns_disturb_nothing(profile: Profile, clock: Clock) -> None:
    def work() -> None:
        one, other = profile.phase("one"), profile.phase("other")
        one.__enter__()
        clock.spend(1)
        other.__enter__()
        clock.spend(2)
        one.__exit__(None, None, None)
        clock.spend(4)
        other.__exit__(None, None, None)

    profile.begin_step(0)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(10)
    profile.end_steps(1)
    assert {path[-1]: row.total / MS for path, row in profile.first.beside.items()} == {"one": 3, "other": 6}
    assert profile.first.other == profile.first.wall == 7 * MS


def test_a_device_is_waited_for_where_a_phase_begins_and_ends(clock: Clock) -> None:
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
            return phase(name)  # off, and nothing

    profile = Profile(clock=clock, operators=Recorder())
    for done in range(4):
        profile.begin_step(done)
        one_step(profile, clock)
    profile.end_steps(4)
    assert (profile.first.last_step, profile.steps.first_step, profile.steps.last_step) == (1, 3, 4)
    assert (profile.first.wall, profile.steps.wall, profile.around.wall) == (33 * MS, 66 * MS, 4033 * MS)


def test_a_background_is_what_no_phase_in_it_takes(profile: Profile, clock: Clock) -> None:
    profile.begin_step(0)
    with profile.background("driver"):
        clock.spend(1)
        with profile.background("trainer"):
            clock.spend(2)
            with profile.phase("generate"), profile.phase("score"):
                clock.spend(4)
            clock.spend(8)
            with profile.phase("trainer"):  # is that already
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


def test_a_background_within_a_phase_leaves_to_it_what_is_its_own(profile: Profile, clock: Clock) -> None:
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


def test_what_is_awaited_at_once_counts_in_full_and_is_no_part_of_the_sum(profile: Profile, clock: Clock) -> None:
    one, other = profile.awaited("judge"), profile.awaited("judge")
    profile.begin_step(0)
    with profile.phase("reward"):
        one.__enter__()
        clock.spend(1)
        other.__enter__()
        clock.spend(2)
        one.__exit__(None, None, None)
        clock.spend(4)
        other.__exit__(None, None, None)
    profile.end_steps(1)
    assert in_ms(profile.first.beside) == {("judge",): (9, 9, 2)}
    assert in_ms(profile.first.rows) == {("reward",): (7, 7, 1)}
    assert profile.first.other == 0


def test_an_iterator_counts_where_it_comes_to_its_items(profile: Profile, clock: Clock) -> None:
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


def test_marks_are_nothing_where_no_profile_is_kept(profile: Profile, clock: Clock) -> None:
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
