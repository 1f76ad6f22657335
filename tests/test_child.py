"""Tests of child processes: their limits, and the end of all that they have started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rlcore import child
from rlcore.child import ChildProcess, run

SLEEPS = "import sys, time; print('begun', flush=True); time.sleep(600)"
STARTS = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {SLEEPS!r}], start_new_session=True)  # as the launchers of torch do
print("ready", flush=True)
"""


def wait_for_end(pids: list[int]) -> bool:
    gone = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return not psutil.wait_procs(gone, timeout=120)[1]


@pytest.mark.slow
def test_the_end_of_a_process_is_that_of_sessions_it_has_started() -> None:
    process = ChildProcess([sys.executable, "-c", STARTS + "import time; time.sleep(600)"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert {process.stdout.readline(), process.stdout.readline()} == {b"begun\n", b"ready\n"}
    below = [each.pid for each in psutil.Process(process.pid).children(recursive=True)]
    assert len(below) == 1
    assert process.end() == -9
    assert wait_for_end(below)
    assert process.end() == -9  # a second end changes nothing


@pytest.mark.slow
def test_a_run_returns_at_its_limit_though_a_process_below_holds_its_output_open() -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPS!r}]).wait()"
    ended = run([sys.executable, "-c", code], limit_s=5.0)
    assert ended.code is None
    assert ended.output in ("", "begun\n")  # the limit may have come first


def test_a_run_returns_the_ends_of_its_outputs() -> None:
    code = "import sys; print('x' * 100 + 'end'); print('bad', file=sys.stderr); sys.exit(3)"
    ended = run([sys.executable, "-S", "-c", code], limit_s=300.0, most=4)
    assert (ended.code, ended.output, ended.errors) == (3, "end\n", "bad\n")


@pytest.mark.slow
def test_a_command_ends_with_the_process_that_holds_its_pipe(tmp_path: Path) -> None:
    log = tmp_path / "log"
    guard = subprocess.Popen(
        [sys.executable, "-I", child.__file__, str(log), sys.executable, "-c", SLEEPS], stdin=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while not (log.exists() and log.read_text()) and time.monotonic() < until:
        time.sleep(0.02)
    below = [each.pid for each in psutil.Process(guard.pid).children()]
    assert guard.stdin is not None
    guard.stdin.close()
    assert guard.wait(120) == 0
    assert len(below) == 1
    assert wait_for_end(below)


@pytest.mark.parametrize(
    ("code", "expected"), [("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 15)", 143)]
)
def test_the_program_exits_as_its_command(code: str, expected: int, tmp_path: Path) -> None:
    read, write = os.pipe()
    command = [sys.executable, "-I", child.__file__, str(tmp_path / "log"), sys.executable, "-S", "-c", code]
    try:
        assert subprocess.run(command, stdin=read, timeout=300, check=False).returncode == expected
    finally:
        os.close(read)
        os.close(write)
