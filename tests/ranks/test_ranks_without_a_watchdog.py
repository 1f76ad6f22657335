"""Tests of collective operations that fail where nothing watches the processes, and where something does."""

from __future__ import annotations

import pytest

from rlcore.errors import RanksError
from rlcore.ranks import Ranks, Watchdog

LOST = RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")


class Told(Watchdog):
    """A watchdog that lists what it is told."""

    def __init__(self) -> None:
        self.failures: list[BaseException] = []

    def note_failure(self, error: BaseException) -> None:
        self.failures.append(error)

    def explain(self, error: BaseException) -> str:
        return f"{self.doing}, {self.waiting}, {self.num_waits}: {error!s:.5}"


def test_a_failed_operation_is_an_error_of_another_process_with_that_of_the_backend() -> None:
    with (
        pytest.raises(RanksError, match=r"another process has ended; see its own error \(\[gloo"),
        Ranks("no").collective("sum"),
    ):
        raise LOST


def test_a_watchdog_knows_the_part_of_the_run_and_the_operation_and_explains_its_failure() -> None:
    ranks, told = Ranks("no"), Told()
    ranks.watch(told)
    ranks.note("step 3")
    ranks.wait()
    with pytest.raises(RanksError, match=r"^step 3, sum, 2: \[gloo$"), ranks.collective("sum"):
        raise LOST
    assert told.waiting == ""


def test_an_error_of_another_process_is_not_noted_as_one_of_this_process() -> None:
    ranks, told = Ranks("no"), Told()
    ranks.watch(told)
    mine = ValueError("x")
    for error in (RanksError("y"), mine):
        ranks.note_failure(error)
    assert told.failures == [mine]
