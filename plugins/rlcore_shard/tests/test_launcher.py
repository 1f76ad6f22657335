"""Tests that a process notices the end of its launcher, saves if it can, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rlcore_shard import local_processes

CHILD = """
import ctypes, importlib.util, os, pathlib, sys, time
spec = importlib.util.spec_from_file_location("launcher", sys.argv[1])
launcher = importlib.util.module_from_spec(spec)
spec.loader.exec_module(launcher)
launcher.POLL_S, launcher.SAVE_S = 0.01, float(sys.argv[2])
stopped = []
launcher.when_alone(lambda: print("an earlier run", flush=True))
launcher.when_alone(lambda: stopped.append(True))
launcher.follow_launcher()
launcher.follow_launcher()
print("ready", flush=True)
while not stopped:
    time.sleep(0.01)
print("saved", flush=True)
if sys.argv[3] == "hang":
    time.sleep(1000)
if sys.argv[3] == "hold the lock":
    ctypes.PyDLL(None).sleep(1000)
print("finished", flush=True)
"""
LAUNCHER = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', *sys.argv[1:]]).wait()"


def outlived(save_s: float, then: str) -> tuple[list[str], str]:
    """Kill the launcher of a process, and return the lines and errors that the process printed until it ended."""
    given = {**os.environ, "RANK": "3", "TORCHELASTIC_RUN_ID": "x"}
    process = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, CHILD, str(Path(local_processes.__file__)), str(save_s), then],
        env=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.wait()
    with process.stdout, process.stderr:  # each is open until the process that the launcher started has ended
        return process.stdout.read().splitlines(), process.stderr.read()


def test_a_process_whose_launcher_is_killed_may_save_and_finish() -> None:
    printed, errors = outlived(1000, "finish")
    assert printed == ["saved", "finished"]
    assert errors.startswith("rank 3: its launcher (process ")
    assert errors.endswith(" has ended: saving if the step ends in time; ends within 1000 s\n")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("then", ["hang", "hold the lock"])
def test_a_process_whose_launcher_is_killed_ends_whatever_its_main_thread_does(then: str) -> None:
    assert outlived(0.2, then)[0] == ["saved"]


def test_a_process_without_a_launcher_watches_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parent is a shell, which may end first, as after nohup."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    before = set(threading.enumerate())
    local_processes.follow_launcher()
    assert set(threading.enumerate()) <= before
