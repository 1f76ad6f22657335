"""Child processes: each leads a session of its own, and is ended together with all that it started.

This file is also a program, which ends a command once the process that started the program has ended, however it did:

    python child.py LOG COMMAND...

Its standard input is a pipe that the other process holds open. The output of the command is appended to LOG.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import IO

import attrs

_MOST = 1 << 20
"""Bytes of an output that are read, the last ones."""
_POLL_S = 0.2
_GRACE_S = 5.0
"""How long the command of the program may take to end after SIGTERM."""


class ChildProcess(subprocess.Popen[bytes]):
    """A process that Ctrl-C in a terminal does not reach, with the methods of `subprocess.Popen` and `end`.

    Args:
        command: its words.
        stdin, stdout, stderr: as of Popen; the input is empty when left out, and outputs are those of this process.
        env: all of its environment variables; those of this process when left out.
        cwd: its working folder.
        pass_fds: descriptors of this process that it keeps.
        user: the user and group that it has, and no further group; those of this process when left out.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int | IO[bytes] = DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        pass_fds: Sequence[int] = (),
        user: int | None = None,
    ) -> None:
        super().__init__(
            list(command), stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, start_new_session=True,
            pass_fds=tuple(pass_fds), user=user, group=user, extra_groups=None if user is None else [],
        )  # fmt: skip

    def end(self, grace_s: float = 0.0) -> int:
        """End the process and all that it has started, and return its exit code.

        Of a process that has ended by itself, those that it has left in sessions of their own go on.

        Args:
            grace_s: how long they may take to end after SIGTERM; with 0 they are killed at once.
        """
        tree = self._descendants()  # before it ends: nothing leads to them afterwards
        if grace_s:
            self._signal_all(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(grace_s)
        tree |= self._descendants()
        self._signal_all(signal.SIGKILL)
        for process in tree:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        code = self.wait()
        if self.stdin is not None:
            with contextlib.suppress(OSError):  # what it did not read
                self.stdin.close()
        return code

    def _signal_all(self, number: int) -> None:
        """Send a signal to its session, of which others may still run when the process has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def _descendants(self) -> set[int]:
        """Return the processes below this one, which may have sessions of their own, as those of torchrun have."""
        if self.poll() is not None:
            return set()
        import psutil

        try:
            return {each.pid for each in psutil.Process(self.pid).children(recursive=True)}
        except psutil.Error:
            return set()


@attrs.frozen
class Ended:
    """What a process left behind.

    Attributes:
        code: its exit code; None if it was ended at its time limit.
        output, errors: the ends of what it printed.
    """

    code: int | None
    output: str
    errors: str


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    most: int = _MOST,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    """Run a command with an empty input, and end it and all that it started when it returns or the time is over.

    The outputs are files: a process that outlives the command and holds them open is not waited for.

    Args:
        command: its words.
        limit_s: the longest time that it may take, in seconds.
        most: bytes of each output that are returned, the last ones.
        env: all of its environment variables; those of this process when left out.
        cwd: its working folder.

    Raises:
        OSError: it cannot be started.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = ChildProcess(command, stdout=output, stderr=errors, env=env, cwd=cwd)
        code: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
        finally:
            process.end()
        return Ended(code, tail(output, most), tail(errors, most))


def tail(file: IO[bytes], most: int, begin: int = 0) -> str:
    """Return the text at the end of a file, of at most so many bytes, and none in front of the byte `begin`."""
    file.seek(max(file.seek(0, os.SEEK_END) - most, begin))
    return file.read().decode(errors="replace")


def _main(log: str, command: Sequence[str]) -> int:
    """Return the exit code of the command, or 0 if it was ended because the pipe was closed."""
    with Path(log).open("ab", buffering=0) as file:
        child = ChildProcess(command, stdout=file, stderr=file)
        signals: list[int] = []  # a handler that waited for the process could find its lock taken
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: signals.append(number))
        is_closed = False
        while child.poll() is None and not is_closed and not signals:
            readable, _, _ = select.select([0], [], [], _POLL_S)
            is_closed = bool(readable) and not os.read(0, 1024)
        code = child.end(_GRACE_S if is_closed or signals else 0.0)  # what it started may still run
    if is_closed:
        return 0
    return code if code >= 0 else 128 - code  # as a shell reports signals


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1], sys.argv[2:]))
