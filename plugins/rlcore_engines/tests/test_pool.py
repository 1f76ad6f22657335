"""Tests of the pool of threads: how many calls run at a time, and what its end does to the others."""

from __future__ import annotations

import threading
from concurrent.futures import wait

import pytest

from rlcore_engines.pool import Pool, begin

LIMIT_S = 300.0


def test_so_many_calls_run_at_a_time_and_no_more() -> None:
    pool, both, lock, running, most = Pool(2), threading.Barrier(2), threading.Lock(), [0], [0]

    def call() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        both.wait(LIMIT_S)  # a pool of one thread would never get here twice
        with lock:
            running[0] -= 1

    wait([pool.submit(call) for _ in range(6)], LIMIT_S)
    pool.close(LIMIT_S)
    assert most[0] == 2


def test_the_end_cancels_calls_that_have_not_begun_and_lets_the_others_end() -> None:
    pool, begun, go_on = Pool(), threading.Event(), threading.Event()
    first = pool.submit(lambda: (begun.set(), go_on.wait(LIMIT_S))[1])
    second = pool.submit(lambda: True)
    assert begun.wait(LIMIT_S)
    pool.close(0.0)
    assert second.cancelled()
    go_on.set()
    assert first.result(LIMIT_S)
    assert pool.submit(lambda: 3).result(LIMIT_S) == 3  # a new thread
    pool.close(LIMIT_S)


def test_an_error_of_a_call_is_raised_where_its_result_is_read() -> None:
    with pytest.raises(ZeroDivisionError):
        begin(lambda: 1 / 0).result(LIMIT_S)
