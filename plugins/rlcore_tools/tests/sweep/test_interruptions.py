"""Tests of the signals that wait for a pause."""

from __future__ import annotations

import signal

import pytest

from rlcore_tools.sweep.child import Interruptions


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_wait_for_a_pause_each_and_a_third_does_not(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Interruptions() as interruptions:
        interruptions.pause(0.0)
        signal.raise_signal(number)
        signal.raise_signal(number)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interruptions.pause(0.0)
        interruptions.pause(0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
