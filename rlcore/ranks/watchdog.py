"""The watchdog of a run with several processes: ranks report what they are doing, and a rank that hangs ends the run.

A thread of every rank writes a report to the store of the process group: the step, and the line of code that the rank
executes. A collective operation that takes longer than `run.timeout_s` raises on the ranks that wait in it. The first
of them publishes the reports of all ranks, which become the error of every waiting rank. The thread of a rank that
hangs elsewhere reads them, prints them and ends its process.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public all the same

from rlcore.logging import get_logger

LONGEST_PERIOD_S = 2.0
GRACE_S = 1.0
"""How long a rank that may be raising an error itself is left to do so, once another has published a failure."""
FAILURE = "failure"
CONNECT_S = 30
STOP_S = 10.0
"""How long the thread may take to end; it takes milliseconds unless the machine of the store is gone."""
LIBRARIES = sys.stdlib_module_names | {"torch", "accelerate", "transformers", "numpy"}
"""Packages whose frames say less about what a rank is doing than the code that called them."""

log = get_logger("ranks")
_runs = itertools.count()  # a process may train several runs, one after another, with one store


class Watchdog:
    """Reports what this rank is doing, and ends this process if another rank has waited for it in vain.

    Args:
        rank: index of this process.
        world: number of processes.
        timeout_s: how long a collective operation may take.

    Attributes:
        doing: the part of the run in progress, such as "step 3".
        waiting: the collective operation in progress; empty if there is none.
    """

    def __init__(self, *, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self.doing, self.waiting = "building the run", ""
        self._watched = threading.get_ident()
        self._period_s = min(LONGEST_PERIOD_S, timeout_s / 4)
        self._over = threading.Event()
        self._store = _connect()
        self._thread = threading.Thread(target=self._watch, args=(self._store,), name="rlcore-watchdog", daemon=True)
        if self._store is not None:
            self._thread.start()
            _started.add(self)

    def stop(self) -> None:
        """End the thread and wait for it: a process that exits while the thread speaks to the store is aborted."""
        self._over.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(STOP_S)

    def explain(self, error: BaseException) -> str:
        """Return why a collective operation of this rank failed; the caller raises it.

        Args:
            error: the backend's error.
        """
        self._over.set()  # this rank ends by its own error
        reason = str(error).partition(". ")[0]
        is_timeout = "timed out" in reason.lower() or "timeout" in reason.lower()
        try:
            if is_timeout and self._store is not None:
                return self._publish(self._store)
            published = "" if self._store is None else self._published(self._store)
        except DistError:  # the store has ended with the process that hosts it
            published = ""
        return published or f"{self.doing}: another process has ended; see its own error ({reason})"

    def _publish(self, store: Store) -> str:
        head = (
            f"a rank has waited for the others longer than run.timeout_s = {self.timeout_s:g} s; one of them hangs, or "
            "works longer than that between two collective operations (then raise run.timeout_s)"
        )
        reports = [f"  rank {rank}: {self._read(store, rank)}" for rank in range(self.world)]
        published = store.compare_set(FAILURE, "", "\n".join([head, *reports])).decode()
        if self.rank == 0:  # may host the store, which the others read before it ends
            time.sleep(2 * self._period_s)
        return published

    def _published(self, store: Store) -> str:
        """Return the failure that another rank has published, or publishes within a moment."""
        for _ in range(5):
            if store.check([FAILURE]):
                return store.get(FAILURE).decode()
            time.sleep(0.1)
        return ""

    def _read(self, store: Store, rank: int) -> str:
        key = _key(rank)
        if not store.check([key]):
            return "no report"
        written, _, text = store.get(key).decode().partition(" ")
        age = time.time() - float(written)
        return text if age < 3 * self._period_s + GRACE_S else f"{text} (its last report, {age:.0f} s ago)"

    def _watch(self, store: Store) -> None:
        try:
            while not self._over.wait(self._period_s):
                store.set(_key(self.rank), f"{time.time()} {self._report()}")
                if store.check([FAILURE]) and not self._over.wait(GRACE_S):
                    _end(store.get(FAILURE).decode(), self.rank)
        except DistError:  # the store has ended with the process that hosts it
            return

    def _report(self) -> str:
        place = _describe(sys._current_frames().get(self._watched))  # noqa: SLF001  documented despite its name
        if self.waiting:
            return f"{self.doing}, waits for the other ranks in {self.waiting}, called by {place}"
        return f"{self.doing}, in {place}"


_started: weakref.WeakSet[Watchdog] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """Stop every thread that still runs, also one in which the garbage of its own run is collected at this moment."""
    for watchdog in list(_started):
        watchdog.stop()


def _connect() -> Store | None:
    """Return the part of the process group's store that belongs to this run; None if it cannot be reached."""
    run, attempt = next(_runs), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    try:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=CONNECT_S))
    except (DistError, KeyError, ValueError) as error:
        log.warning("no store: a rank that hangs is not named, and ends only when it is killed", reason=str(error))
        return None
    return PrefixStore(f"rlcore/{attempt}/{run}", store)


def _key(rank: int) -> str:
    return f"report/{rank}"


def _describe(frame: FrameType | None) -> str:
    """Return the innermost function that belongs neither to a library nor to this package, with file and line."""
    found = frame
    while found is not None:
        module = str(found.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in LIBRARIES and not module.startswith(__package__ or __name__):
            break
        found = found.f_back
    found = found or frame
    if found is None:
        return "a thread that has ended"
    file = Path(found.f_code.co_filename)
    return f"{found.f_code.co_qualname} ({file.parent.name}/{file.name}:{found.f_lineno})"


def _end(failure: str, rank: int) -> None:
    """Print why and end this process, whatever its main thread is doing."""
    os.write(2, f"RanksError: rank {rank} is ended: {failure}\n".encode())
    os._exit(1)
