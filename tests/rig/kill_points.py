"""Run functions in forked processes, and kill them before a chosen one of their file operations."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AUDITED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.chmod"}
"""Operations of which Python tells audit hooks before it executes them; those of `open` depend on its flags."""
TIMEOUT_S = 600.0


class FileOperations:
    """Counts the operations of this process that change a file below `root`, and kills it before number `kill_at`.

    Syncs count too. Files that compiled libraries write, such as those of safetensors, are not seen; the operations
    before and after them are.
    """

    def __init__(self, root: Path, kill_at: int | None = None) -> None:
        self.root, self.kill_at, self.count = str(root.resolve()) + os.sep, kill_at, 0
        self.met: Callable[[int], None] = lambda count: None
        """Is called before each operation with its number."""
        sys.addaudithook(self._audit)
        for name in ("fsync", "write"):
            self._wrap(name)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            if isinstance(arguments[2], int) and arguments[2] & WRITING:
                self._meet(arguments[0], -1)
        elif event in AUDITED:
            self._meet(arguments[0], arguments[-1] if event in {"os.remove", "os.rmdir", "os.mkdir"} else -1)

    def _wrap(self, name: str) -> None:
        function = getattr(os, name)

        def wrapped(handle: int, *rest: Any) -> Any:
            self._meet(handle, -1)
            return function(handle, *rest)

        setattr(os, name, wrapped)

    def _meet(self, path: Any, folder: int) -> None:
        if isinstance(path, int):
            path = _path_of(path)
        path = os.fsdecode(path)
        if folder >= 0:  # then a relative path is relative to that folder
            path = Path(_path_of(folder), path)
        if f"{Path(path).absolute()}{os.sep}".startswith(self.root):
            self.count += 1
            self.met(self.count)
            if self.count == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def _path_of(handle: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115
    except OSError:
        return ""


def fork(function: Callable[[], Any], output: Path | None = None) -> int:
    """Call a function in a forked process and return the id of that process; its output goes to a file, if given."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        if output is not None:
            stream = output.open("a", encoding="utf-8")
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.stdout = sys.stderr = stream
        function()
        code = 0
    except BaseException:  # noqa: BLE001  the traceback is the child's whole answer
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, timeout_s: float = TIMEOUT_S) -> int:
    """Return the exit code of a forked process, -9 if it was killed.

    Raises:
        TimeoutError: it still runs, and was killed.
    """
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"process {child} hangs")


def states(root: Path, function: Callable[[], Any], output: Path) -> list[int]:
    """Call a function in a forked process; return the numbers of those of its file operations that find a new state.

    A process that is killed before another one, after a sync say, leaves what one killed at the operation before does.
    """
    found: list[int] = []
    listed = output.with_suffix(".states")

    def run() -> None:
        last: list[tuple[Any, ...]] | None = None

        def look(count: int) -> None:
            nonlocal last
            seen = [(path, *_state_of(path)) for path in sorted(root.rglob("*"))]
            if seen != last:
                found.append(count)
            last = seen

        FileOperations(root).met = look
        function()
        listed.write_text(json.dumps(found), encoding="utf-8")

    succeed(run, output)
    numbers: list[int] = json.loads(listed.read_text(encoding="utf-8"))
    return numbers


def _state_of(path: Path) -> tuple[int, ...]:
    stat = path.lstat()
    return (stat.st_ino, stat.st_mode, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


def killed_at(kill_at: int, root: Path, function: Callable[[], Any], output: Path | None = None) -> bool:
    """Call a function in a forked process that is killed before its file operation number `kill_at`, from 1.

    Returns:
        False if it had fewer operations and ended by itself.

    Raises:
        RuntimeError: it failed instead.
    """

    def run() -> None:
        FileOperations(root, kill_at)
        function()

    code = wait(fork(run, output))
    if code not in (0, -signal.SIGKILL):
        raise RuntimeError(f"the process to be killed at operation {kill_at} ended with exit code {code}; see {output}")
    return code == -signal.SIGKILL


def succeed(function: Callable[[], Any], output: Path | None = None) -> None:
    """Call a function in a forked process.

    Raises:
        RuntimeError: it failed.
    """
    if code := wait(fork(function, output)):
        raise RuntimeError(f"the process ended with exit code {code}; see {output}")
