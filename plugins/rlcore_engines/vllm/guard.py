"""Start a command, and end it together with the process that started this one.

    python guard.py LOG COMMAND...

The standard input is a pipe that the other process holds open. When that process has ended, however it did, the pipe
is closed, and the command and all that it started are ended too. It imports the standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

POLL_S = 0.2
GRACE_S = 5.0
"""How long a command may take to end after SIGTERM."""


def main(log: str, command: list[str]) -> int:
    """Return the exit code of the command, or 0 if it was ended because the pipe was closed."""
    with open(log, "ab", buffering=0) as file:  # noqa: PTH123  pathlib is not needed for one file
        child = subprocess.Popen(  # noqa: S603  the command that the caller chose
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: end(child))
        while child.poll() is None:
            readable, _, _ = select.select([0], [], [], POLL_S)
            if readable and not os.read(0, 1024):
                end(child)
                return 0
        end(child)  # what it started may still run
        return child.returncode if child.returncode >= 0 else 128 - child.returncode  # as a shell reports signals


def end(child: subprocess.Popen[bytes]) -> None:
    """End a process and all others of its group: first with SIGTERM, then with SIGKILL."""
    until = time.monotonic() + GRACE_S
    kill(child.pid, signal.SIGTERM)
    while child.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    kill(child.pid, signal.SIGKILL)
    child.wait()


def kill(group: int, number: int) -> None:
    """Send a signal to a group of processes, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
