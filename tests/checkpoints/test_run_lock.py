"""Tests of the lock on a run's folder: it names its process, and does not outlive it."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from kill_points import fork, wait

from rlcore.checkpoints.claim import RunLock
from rlcore.checkpoints.run_folder import is_locked
from rlcore.errors import RunInUse


def hold(folder: Path) -> int:
    """Lock the folder in another process, which has started a process of its own; return its id."""

    watched = os.getpid()

    def stay() -> None:
        lock = RunLock(folder)
        fork(lambda: wait_for(lambda: not is_alive(watched) or (folder / "end").exists()))
        (folder / "locked").write_text("")
        wait_for(lambda: not is_alive(watched))
        lock.release()

    child = fork(stay)
    wait_for((folder / "locked").exists)
    return child


def wait_for(event: Callable[[], bool]) -> None:
    end = time.monotonic() + 600
    while not event():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_locked_run_names_the_process_that_holds_it_and_is_free_when_that_is_dead(tmp_path: Path) -> None:
    child = hold(tmp_path)
    with pytest.raises(RunInUse) as caught:
        RunLock(tmp_path)
    place = re.escape(f"{tmp_path} is in use by process {child} on host {socket.gethostname()}")
    assert re.match(place + r", since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\S*: wait until", str(caught.value))
    os.kill(child, signal.SIGKILL)
    assert wait(child) == -signal.SIGKILL
    lock = RunLock(tmp_path)  # although the child of the killed process lives
    assert str(os.getpid()) in (tmp_path / ".lock-owner").read_text()
    lock.release()
    assert not (tmp_path / ".lock-owner").exists()
    (tmp_path / "end").write_text("")


def test_a_released_lock_does_not_take_the_next_ones_description(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    first.release()
    second = RunLock(tmp_path)
    first.release()
    with pytest.raises(RunInUse, match=f"process {os.getpid()} on host"):
        RunLock(tmp_path)
    second.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(self: FileLock) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(FileLock, "acquire", fail)
    RunLock(tmp_path).release()
    assert "a second process in this run would not be noticed" in capsys.readouterr().err


def test_a_reader_that_looks_whether_a_run_is_locked_does_not_keep_it_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = FileLock(tmp_path / ".lock")
    reader.acquire()
    monkeypatch.setattr(time, "sleep", lambda _: reader.release())  # between two attempts, the reader has finished
    lock = RunLock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()


def test_looking_whether_a_finished_run_is_locked_takes_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = RunLock(tmp_path)
    lock.release()
    monkeypatch.setattr(FileLock, "acquire", lambda _: pytest.fail("the lock is taken"))
    assert not is_locked(tmp_path)
