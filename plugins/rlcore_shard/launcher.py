"""End a process that torchrun, `accelerate launch` or `run.processes` started once that launcher has ended.

A launcher that is killed with SIGKILL cannot stop its processes. Each of them would train on, hold the lock of the run
and the memory of its device, and nobody would notice when it fails.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, NoReturn

POLL_S = 0.25
SAVE_S = 4.0
"""How long a process may take to finish its step and save once its launcher has ended."""

_followers: set[int] = set()  # of process ids, since a fork inherits this set and not the thread
_stop: list[Callable[[], None]] = []


def follow_launcher() -> None:
    """Start the thread that waits for the end of the launcher, once in a process that has one."""
    if "TORCHELASTIC_RUN_ID" in os.environ and os.getpid() not in _followers:
        _followers.add(os.getpid())
        threading.Thread(target=_follow, args=(os.getppid(),), name="rlcore-launcher", daemon=True).start()


def when_alone(stop: Callable[[], None]) -> None:
    """Call `stop` from another thread when the launcher has ended; it replaces the function of an earlier run."""
    _stop[:] = [stop]


def leave(what: str) -> NoReturn:
    """Request a stop, so that the run saves if it can, and end this process `SAVE_S` seconds later.

    Args:
        what: what has ended.
    """
    # Ends the process also while a library holds the interpreter's lock, or the interpreter itself is ending.
    faulthandler.dump_traceback_later(SAVE_S, exit=True, file=_nowhere())
    rank = os.environ.get("RANK", "?")
    os.write(2, f"rank {rank}: {what} has ended: saving if the step ends in time; ends within {SAVE_S:g} s\n".encode())
    for stop in _stop:
        stop()
    time.sleep(SAVE_S)
    os._exit(1)


@functools.cache
def _nowhere() -> IO[str]:
    """Return an open file that keeps nothing, for the traceback that faulthandler writes."""
    return Path(os.devnull).open("w", encoding="utf-8")


def _follow(launcher: int) -> None:
    while os.getppid() == launcher:
        time.sleep(POLL_S)
    leave(f"its launcher (process {launcher})")
