"""A law changes no random state, default, alarm or signal handler of the process that holds it."""

from __future__ import annotations

import itertools
import random
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from rlcore_testing import Case, LawBroken, Subject, law
from rlcore_testing.law import DIST, Law
from rlcore_testing.rig.isolate import time_limit


def test_a_law_does_not_change_global_state() -> None:
    @law(DIST)
    def draws(subject: Subject) -> None:
        """Seed and draw, as laws do."""
        seed_all(1)
        assert torch.get_default_dtype() == torch.float32
        raise LawBroken("broken, too")

    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        seed_all(5)
        expected = draw_all()
        seed_all(5)
        with pytest.raises(LawBroken):
            Case(draws, Subject("acme", ()))()
        assert draw_all() == expected
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(dtype)


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the global one is meant
    torch.manual_seed(seed)


def draw_all() -> tuple[float, float, float]:
    return random.random(), np.random.random(), float(torch.rand(1))  # noqa: NPY002  the same


def test_a_law_that_never_ends_is_stopped_and_the_alarm_is_restored() -> None:
    before = signal.getsignal(signal.SIGALRM)
    message = r"not finished after 0\.2 s, while in .*: check that every loop yields or ends"
    with pytest.raises(LawBroken, match=message), time_limit(0.2):
        sum(1 for _ in itertools.repeat(None))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_an_alarm_set_by_the_program_is_kept() -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    try:
        with time_limit(0.01):
            assert 990 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def test_a_law_receives_signals_that_its_process_ignores() -> None:
    report = (
        "import signal as s; print(s.getsignal(s.SIGINT) is s.default_int_handler, s.getsignal(s.SIGTERM) is s.SIG_DFL)"
    )

    def hold(_: Subject) -> None:
        child = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
        assert child.stdout == "True True\n"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        Case(Law("law", DIST, hold, lambda _: True), Subject("acme", ()))()
        assert all(signal.getsignal(number) is signal.SIG_IGN for number in before)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
