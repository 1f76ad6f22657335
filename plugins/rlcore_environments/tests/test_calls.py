"""Limits of calls: how many run at a time, how long each may take, and how many threads there are."""

from __future__ import annotations

import threading
import time

import pytest

from rlcore_environments.calls import Calls, CallTooLate, allow_more

LIMIT_S = 10.0
"""A test that waits for ever fails after this time."""


def _ends(work: object) -> float:
    """Return the seconds that a function takes, which must end."""
    done, begin = threading.Event(), time.monotonic()

    def run() -> None:
        work()  # type: ignore[operator]
        done.set()

    threading.Thread(target=run, daemon=True).start()
    assert done.wait(LIMIT_S), "it waits for ever"
    return time.monotonic() - begin


def test_a_late_call_frees_its_place_although_nobody_reads_its_result() -> None:
    calls, hung = Calls(1, 0.2), threading.Event()
    late = calls.start(hung.wait)
    second = calls.start(lambda: 7)
    found = []
    _ends(lambda: found.append(second.result()))
    assert found == [7]
    with pytest.raises(CallTooLate, match=r"timeout_s = 0\.2 seconds"):
        late.result()
    hung.set()


def test_the_time_of_a_call_counts_from_its_beginning() -> None:
    calls, hung = Calls(8, 2.0), threading.Event()
    late = [calls.start(hung.wait) for _ in range(8)]

    def read() -> None:
        for call in late:
            with pytest.raises(CallTooLate):
                call.result()

    assert _ends(read) < 12  # eight times 2 s if it counted from each reading
    hung.set()


def test_a_call_that_ended_in_time_is_not_late_when_it_is_read_late() -> None:
    calls = Calls(1, 0.1)
    call = calls.start(lambda: 3)
    time.sleep(0.3)
    assert call.result() == 3


def test_there_are_no_more_threads_than_calls_that_may_run() -> None:
    before, calls = threading.active_count(), Calls(3, 5.0)
    go = threading.Event()
    pending = [calls.start(lambda k=k: go.wait() and k) for k in range(500)]
    assert threading.active_count() - before <= 3
    go.set()
    assert [call.result() for call in pending] == list(range(500))


def test_a_call_may_be_given_more_time_from_within() -> None:
    def slow() -> str:
        for _ in range(3):
            allow_more(0.3)
            time.sleep(0.15)
        return "done"

    assert Calls(1, 0.2).start(slow).result() == "done"
    allow_more(1.0)  # outside of a call there is nothing to extend
