"""The watchdog of a run with several processes: ranks report what they are doing, and a rank that hangs ends the run.

A thread of every rank writes a report to the store of the process group: the step, and the line of code that the rank
executes. A collective operation that takes longer than `run.timeout_s` raises on the ranks that wait in it. The first
of them publishes the reports of all ranks, which become the error of every waiting rank. The thread of a rank that
hangs elsewhere reads them, prints them and ends its process. Where a rank has ended, the others see that its report
changes no more, and name it with its last one.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public all the same

from rlcore.logging import get_logger
from rlcore.ranks import Watchdog
from rlcore_shard.local_processes import leave, when_alone

LONGEST_PERIOD_S = 1.0
SILENT_PERIODS = 2.5
"""How many periods a rank may need for a report; one that needs longer has ended, or its threads are blocked."""
GRACE_S = 1.0
"""How long a rank that may be raising an error itself is left to do so, once another has published a failure."""
FAILURE, ENDED = "failure", "ended"
"""Keys in the store: why the run fails, and the first error by which a rank ended."""
WAITED = "a rank has waited for the others longer than run.timeout_s ="
MEANING = "one of them hangs, or works longer than that between two collective operations (then raise run.timeout_s)"
CONNECT_S = 30
STOP_S = 10.0
"""How long the thread may take to end; it takes milliseconds unless the machine of the store is gone."""
LIBRARIES = sys.stdlib_module_names | {"torch", "accelerate", "transformers", "numpy"}
"""Packages whose frames say less about what a rank is doing than the code that called them."""

log = get_logger("ranks")
_runs = itertools.count()  # a process may train several runs, one after another, with one store


class Reporter(Watchdog):
    """Reports what this rank is doing, and ends this process if another rank has waited for it in vain.

    Args:
        rank: index of this process.
        world: number of processes.
        timeout_s: how long a collective operation may take.
    """

    def __init__(self, *, rank: int, world: int, timeout_s: float) -> None:
        self.rank, self.world, self.timeout_s = rank, world, timeout_s
        self._watched = threading.get_ident()
        self._period_s = min(LONGEST_PERIOD_S, timeout_s / 4)
        self._over, self._explains, self._numbers = threading.Event(), False, itertools.count()
        self._first = ""  # the last report of rank 0, which may host the store
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

    def when_alone(self, stop: Callable[[], None]) -> None:
        """Let `stop` be called when the launcher has ended."""
        when_alone(stop)

    def note_failure(self, error: BaseException) -> None:
        """Publish that this rank ends by an error of its own, for the errors of the others."""
        self._explains = True
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        text = f"rank {self.rank} ({self.doing}) ended by {reason:.300}"
        if self._store is not None:
            with suppress(DistError):
                self._store.compare_set(ENDED, "", text)

    def explain(self, error: BaseException) -> str:
        """Return why a collective operation of this rank failed; the caller raises it.

        Args:
            error: the backend's error.
        """
        self._explains = True  # this rank ends by its own error
        reason = str(error).partition(". ")[0]
        is_timeout = "timed out" in reason.lower() or "timeout" in reason.lower()
        try:
            published = "" if self._store is None else self._published(self._store, is_timeout=is_timeout)
        except DistError:  # the store has ended with the process that hosts it
            published = f"another process has ended: {self._host()}"
        self._over.set()
        if published.startswith(WAITED):
            return published
        doing = self.doing or "after the run"
        return f"{doing}: {published or 'another process has ended'}; see its own error ({reason})"

    def _published(self, store: Store, *, is_timeout: bool) -> str:
        """Return why the run fails, which the first rank that knows publishes for all."""
        if not store.check([FAILURE]):
            if not is_timeout and store.check([ENDED]):
                found = f"another process has ended: {store.get(ENDED).decode()}"
            else:
                reports, silent = self._observe(store)
                listed = "\n".join([f"{WAITED} {self.timeout_s:g} s; {MEANING}", *reports])
                found = listed if is_timeout else "another process has ended" + (silent and ": ") + silent
            store.compare_set(FAILURE, "", found)
        found = store.get(FAILURE).decode()
        if self.rank == 0 and not _is_hosted_by_launcher():  # the others read the store before it ends with this rank
            time.sleep(2 * self._period_s)
        return found

    def _observe(self, store: Store) -> tuple[list[str], str]:
        """Return the reports of all ranks, and what was last heard of those that report no more.

        Whether a rank reports is seen from changes of its report, never from its clock, which may be hours off.
        """
        before, now = self._reports(store), self._reports(store)
        end = time.monotonic() + SILENT_PERIODS * self._period_s
        while any(map(str.__eq__, before, now)) and time.monotonic() < end and not store.check([FAILURE]):
            time.sleep(0.05)
            now = self._reports(store)
        silence = f"it has not reported for {SILENT_PERIODS * self._period_s:g} s"
        texts = [each.partition(" ")[2] or "no report" for each in now]
        silent = [rank for rank in range(self.world) if before[rank] == now[rank]]
        notes = [f" ({silence})" if rank in silent else "" for rank in range(self.world)]
        reports = [f"  rank {rank}: {text}{note}" for rank, (text, note) in enumerate(zip(texts, notes, strict=True))]
        return reports, ", ".join(f"rank {rank} (last report: {texts[rank]})" for rank in silent)

    def _reports(self, store: Store) -> list[str]:
        """Return the number and text of the last report of every rank; empty of one that has not reported."""
        keys = [f"report/{rank}" for rank in range(self.world)]
        if store.check(keys):
            return [each.decode() for each in store.multi_get(keys)]
        return [store.get(key).decode() if store.check([key]) else "" for key in keys]

    def _watch(self, store: Store) -> None:
        try:
            store.set(f"report/{self.rank}", f"{next(self._numbers)} {self._report()}")
            while not self._over.wait(self._period_s):
                store.set(f"report/{self.rank}", f"{next(self._numbers)} {self._report()}")
                if store.check(["report/0"]):
                    self._first = store.get("report/0").decode().partition(" ")[2]
                if store.check([FAILURE]) and not self._explains and not self._over.wait(GRACE_S):
                    _end(store.get(FAILURE).decode(), self.rank)
        except DistError:  # the store has ended with the process that hosts it
            self._watch_alone()

    def _watch_alone(self) -> None:
        """End this process if it reaches no collective operation, in which it would fail, for as long as one may take.

        No other rank could end it: the reports of this rank are read no more.
        """
        if _is_hosted_by_launcher() and not self._over.wait(GRACE_S):
            leave("the launcher that hosts the store of the run")
        seen, since = -1, time.monotonic()
        while not self._over.wait(self._period_s):
            if not self.doing or self.num_waits != seen:
                seen, since = self.num_waits, time.monotonic()
            elif time.monotonic() - since > self.timeout_s + GRACE_S and not self._explains:
                _end(f"{self._host()} has ended, and this rank reaches no other: {self._report()}", self.rank)

    def _host(self) -> str:
        """Return who has ended if the store has."""
        if _is_hosted_by_launcher():
            return "the launcher, which hosts the store"
        return "rank 0, which hosts the store" + (f" (last report: {self._first})" if self._first else "")

    def _report(self) -> str:
        place = _describe(sys._current_frames().get(self._watched))  # noqa: SLF001  documented despite its name
        if self.waiting:
            return f"{self.doing}, waits for the other ranks in {self.waiting}, called by {place}"
        return f"{self.doing}, in {place}"


_started: weakref.WeakSet[Reporter] = weakref.WeakSet()


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


def _is_hosted_by_launcher() -> bool:
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _describe(frame: object) -> str:
    """Return the innermost function that belongs neither to a library nor to `rlcore.ranks`, with file and line.

    The other thread goes on meanwhile. Under CPython 3.11 `f_back` was then once seen to be a dict instead of a frame.
    """
    found = frame
    while isinstance(found, FrameType):
        module = str(found.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in LIBRARIES and not module.startswith(Watchdog.__module__):
            break
        found = found.f_back
    if not isinstance(found, FrameType):
        found = frame
    if not isinstance(found, FrameType):
        return "a thread that has ended" if found is None else "an unknown place"
    file = Path(found.f_code.co_filename)
    return f"{found.f_code.co_qualname} ({file.parent.name}/{file.name}:{found.f_lineno})"


def _end(failure: str, rank: int) -> None:
    """Print why and end this process, whatever its main thread is doing."""
    os.write(2, f"RanksError: rank {rank} is ended: {failure}\n".encode())
    os._exit(1)
