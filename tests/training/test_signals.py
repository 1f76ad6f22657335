"""Tests of signals in real processes: the first requests a stop, the second ends the process at once."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import types

import pytest

from rlcore.training import loop
from rlcore.training.loop import StopRequest

PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from rlcore.training.loop import StopRequest

with StopRequest(7) as stop:
    print("ready", flush=True)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        time.sleep(0.01)
        if stop.requested and "graceful" in sys.argv:
            break
print("saved", flush=True)
"""


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if key not in {"RANK", "TORCHELASTIC_RUN_ID"}}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**inherited, **environment},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_finishes_the_step_with_one_clear_line(number: signal.Signals) -> None:
    process = start("graceful")
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert out == "saved\n"
    assert err.strip() == f"{number.name}: finishing step 7, then saving; press again to stop at once"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(number: signal.Signals) -> None:
    process = start()
    process.send_signal(number)
    assert process.stderr is not None
    assert process.stderr.readline() == "\n"
    assert "press again" in process.stderr.readline()
    assert process.poll() is None
    process.send_signal(number)
    out, err = process.communicate(timeout=300)
    assert process.returncode in {130, -signal.SIGINT}
    assert "saved" not in out
    assert "KeyboardInterrupt" in err


@pytest.mark.parametrize(("launched", "later_s", "is_press"), [
    (True, 0.0, False), (True, 1.0, False), (True, 1.5, True), (False, 0.0, True),
])  # fmt: skip
def test_the_echo_that_torchrun_sends_within_a_second_is_no_second_press(
    launched: bool, later_s: float, is_press: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(loop, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if launched:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested
        now[0] += later_s
        with pytest.raises(KeyboardInterrupt) if is_press else contextlib.nullcontext():
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_other_ranks_stop_without_printing_anything() -> None:
    process = start("graceful", RANK="1")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
    assert (out, err) == ("saved\n", "")


def test_signal_handlers_are_restored_after_a_run() -> None:
    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        with StopRequest() as stop:
            assert signal.getsignal(signal.SIGTERM) is not mine
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop.requested
        assert signal.getsignal(signal.SIGTERM) is mine
        with pytest.raises(ValueError, match="from inside"), StopRequest():
            raise ValueError("from inside")
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not stop.requested
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_stop_asked_for_in_code_leaves_the_first_signal_graceful() -> None:
    with StopRequest() as stop:
        stop.request()
        assert stop.requested
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.requested


def test_a_run_in_another_thread_installs_no_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work() -> None:
        with StopRequest() as stop:
            seen.append((signal.getsignal(signal.SIGINT), stop.requested))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(before, False)]
