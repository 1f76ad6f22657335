"""Tests of the thread that reports what each rank is doing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from torch.distributed import DistError, HashStore, TCPStore  # type: ignore[attr-defined]  # public all the same

from rlcore_shard import watchdog
from rlcore_shard.watchdog import Reporter

EXITS_WHILE_IT_REPORTS = """
import time, weakref
from rlcore_shard.watchdog import Reporter

class Owner: ...

owner = Owner()
weakref.finalize(owner, Reporter(rank=0, world=2, timeout_s=1e-4).stop)
time.sleep(0.1)
"""


EXITS_WHILE_IT_COLLECTS_GARBAGE = """
import time, weakref
import torch
from rlcore_shard.watchdog import Reporter

class Owner: ...

class Slow:
    def __del__(self):
        numbers = torch.ones(600, 600)
        for _ in range(200):
            numbers = torch.mm(numbers, numbers)

watchdog, owners = Reporter(rank=0, world=2, timeout_s=1e-4), [Owner()]
weakref.finalize(owners[0], watchdog.stop)

def report():
    owners.clear()
    Slow()
    return ""

watchdog._report = report
time.sleep(0.1)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("script", [EXITS_WHILE_IT_REPORTS, EXITS_WHILE_IT_COLLECTS_GARBAGE])
def test_a_process_can_exit_while_the_watchdog_thread_works(script: str) -> None:
    """Without a wait for the thread, three in four of the first processes are aborted, and all of the second."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port)}
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], list[Reporter]]]:
    """Return the watchdogs of several ranks in this process, which report every tenth of a second to one store."""
    made: list[Reporter] = []

    def make(world: int) -> list[Reporter]:
        store = HashStore()
        monkeypatch.setattr(watchdog, "_connect", lambda: store)
        made.extend(Reporter(rank=rank, world=world, timeout_s=0.4) for rank in range(world))
        end = time.monotonic() + 600
        while not store.check([f"report/{rank}" for rank in range(world)]):
            assert time.monotonic() < end
            time.sleep(0.01)
        return made

    read, earlier = Reporter._reports, {}

    def read_new_ones(self: Reporter, store: Any) -> list[str]:
        """Return the reports once every rank whose thread lives has reported again, however busy the machine is."""
        found, seen = read(self, store), earlier.get(self)
        while seen and any(each._thread.is_alive() and found[each.rank] == seen[each.rank] for each in made):
            time.sleep(0.01)
            found = read(self, store)
        earlier[self] = found
        return found

    monkeypatch.setattr(Reporter, "_reports", read_new_ones)
    monkeypatch.setattr(watchdog, "SILENT_PERIODS", 0.0)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    yield make
    for each in made:
        each.stop()


LOST = RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer. More")


def test_differing_clocks_do_not_make_a_rank_count_as_silent(
    ranks: Callable[[int], list[Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = itertools.count(0, 3601)
    monkeypatch.setattr(time, "time", lambda: float(next(hours)))
    first, second = ranks(2)
    second.doing = "step 7"
    told = first.explain(RuntimeError("Timed out waiting 400ms for recv operation. More"))
    assert told.startswith("a rank has waited for the others longer than run.timeout_s = 0.4 s; one of them hangs")
    assert "  rank 1: " in told
    assert "reported for" not in told
    assert " ago" not in told


def test_a_dict_in_place_of_a_frame_does_not_end_the_thread(
    ranks: Callable[[int], list[Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Frame(SimpleNamespace):
        """A frame of torch, of which the interpreter returns a dict as the caller's."""

        f_globals, f_back, f_lineno = {"__name__": "torch.nn"}, {"f": 1}, 7
        f_code = SimpleNamespace(co_filename="/lib/torch/nn.py", co_qualname="Linear.forward")

    (watching,) = ranks(1)
    monkeypatch.setattr(sys, "_current_frames", lambda: {watching._watched: {"f": 1}})
    end = time.monotonic() + 600
    assert watching._store is not None
    while not watching._store.get("report/0").endswith(b", in an unknown place"):
        assert time.monotonic() < end
        time.sleep(0.01)
    monkeypatch.setattr(watchdog, "FrameType", Frame)
    assert watchdog._describe(Frame()) == "Linear.forward (torch/nn.py:7)"
    assert watchdog._describe(None) == "a thread that has ended"


def test_a_rank_that_no_longer_reports_is_named_with_its_last_report_by_all_others(
    ranks: Callable[[int], list[Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = ranks(3)
    monkeypatch.setattr(Reporter, "_report", lambda self: f"{self.doing}, in sampling")
    second.doing = "step 7"
    end = time.monotonic() + 600
    assert second._store is not None
    while b"step 7" not in second._store.get("report/1"):
        assert time.monotonic() < end
        time.sleep(0.01)
    second.stop()
    first.doing = third.doing = "step 8"
    expected = (
        "step 8: another process has ended: rank 1 (last report: step 7, in sampling); see its own error "
        "([/gloo/transport/tcp/pair.cc:534] Connection closed by peer)"
    )
    assert first.explain(LOST) == expected
    first.stop()  # it reports no more either, and did not end first
    assert third.explain(LOST) == expected


def test_a_rank_that_waited_in_vain_lists_one_that_no_longer_reports(ranks: Callable[[int], list[Reporter]]) -> None:
    first, second = ranks(2)
    second.stop()
    told = first.explain(RuntimeError("Timed out waiting 400ms for recv operation"))
    assert "(it has not reported for 0 s)" in told.splitlines()[2]
    assert "reported" not in told.splitlines()[1]


def test_a_rank_that_ends_by_an_error_is_named_with_it(ranks: Callable[[int], list[Reporter]]) -> None:
    first, second = ranks(2)
    second.doing, first.doing = "step 3", "step 4"
    second.note_failure(ValueError("no such word\nmore"))
    second.note_failure(ValueError("an error in closing"))
    second.stop()
    assert "ended: rank 1 (step 3) ended by ValueError: no such word; see its own error" in first.explain(LOST)


class Ended:
    """A store whose host has ended."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def fail(*_: object) -> None:
            raise DistError("Connection reset by peer")

        return fail


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], Callable[..., Reporter]]:
    """Return why processes are ended, and the watchdog of a rank whose store has ended."""
    ended: list[str] = []

    def end(reason: str, *_: int) -> None:
        ended.append(reason)
        raise DistError("the process has ended")

    monkeypatch.setattr(watchdog, "GRACE_S", 0.0)
    monkeypatch.setattr(watchdog, "_connect", Ended)
    monkeypatch.setattr(watchdog, "_end", end)
    monkeypatch.setattr(watchdog, "leave", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    return ended, lambda **given: Reporter(rank=1, world=2, timeout_s=0.4, **given)


def test_a_rank_that_hangs_ends_also_without_the_store(alone: tuple[list[str], Callable[..., Reporter]]) -> None:
    ended, make = alone
    rank = make()
    rank.doing = "step 2"
    rank._thread.join(600)
    assert len(ended) == 1
    assert ended[0].startswith("rank 0, which hosts the store has ended, and this rank reaches no other: step 2, in ")


def test_a_rank_that_still_meets_others_or_whose_run_is_over_does_not_end_with_the_store(
    alone: tuple[list[str], Callable[..., Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, make = alone
    ticks: list[float] = []
    made: list[Reporter] = []

    def monotonic() -> float:
        for each in made[:1]:
            each.num_waits += 1
            ticks.append(0.3)
        return sum(ticks)

    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(watchdog, "LONGEST_PERIOD_S", 0.01)
    busy, over = make(), make()
    over.doing = ""
    made.append(busy)
    end = time.monotonic() + 600
    while len(ticks) < 20:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert ended == []
    for each in (busy, over):
        each.stop()
    assert "step" not in over.explain(LOST)


def test_a_rank_whose_store_ended_with_the_launcher_saves_and_ends(
    alone: tuple[list[str], Callable[..., Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    ended, make = alone
    make()._thread.join(600)
    assert ended == ["the launcher that hosts the store of the run"]


def test_the_error_of_a_rank_whose_store_has_ended_names_its_host_and_the_last_report(
    ranks: Callable[[int], list[Reporter]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "False")
    first, second = ranks(2)
    first.doing, second.doing = "step 5", "step 6"
    end = time.monotonic() + 600
    while "step 5" not in second._first:
        assert time.monotonic() < end
        time.sleep(0.01)
    second._store = Ended()  # type: ignore[assignment]
    told = second.explain(LOST)
    assert told.startswith("step 6: another process has ended: rank 0, which hosts the store (last report: step 5, in ")
