"""A law changes no random state, default, alarm or signal handler of its process, and sees who changes them."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcore_testing import Case, LawBroken, Subject, law
from rlcore_testing.law import DIST, Law
from rlcore_testing.rig import isolate
from rlcore_testing.rig.isolate import AHEAD, FILES, as_second_rank, time_limit, undisturbed


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


@pytest.mark.parametrize(
    ("disturb", "says"),
    [
        (lambda: random.seed(4), "the global random state of python,"),
        (lambda: np.random.seed(4), "the global random state of numpy,"),  # noqa: NPY002  the global one is meant
        (lambda: torch.manual_seed(4), "the global random state of torch,"),
        (lambda: torch.set_default_dtype(torch.float64), "torch's default dtype,"),
        (lambda: torch.set_grad_enabled(False), "torch's grad mode,"),
        (lambda: logging.getLogger().setLevel(logging.CRITICAL), "the root logger,"),
        (lambda: Path("file.txt").write_text("text"), "writes file.txt into the working folder"),
    ],
)
def test_what_a_call_disturbs_is_named_also_the_second_time(disturb: Callable[[], object], says: str) -> None:
    dtype, level, folder = torch.get_default_dtype(), logging.getLogger().level, Path.cwd()
    try:
        if "random" in says:
            disturb()  # a second seed is a change too
        with pytest.raises(LawBroken, match=says), undisturbed("it"):
            disturb()
        assert Path.cwd() == folder
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(True)
        logging.getLogger().setLevel(level)


def test_a_call_that_disturbs_nothing_may_draw_from_a_generator_of_its_own_and_do_what_it_is_allowed() -> None:
    with undisturbed("it", but=[FILES]):
        Path("file.txt").write_text(str(random.Random(4).random()))
    assert Path("file.txt").exists()  # the working folder was the present one


def test_what_a_module_has_that_a_call_imports_first_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    with undisturbed("it"):
        sys.modules["numpy"] = np


def test_a_file_that_is_there_already_is_not_written_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.txt").write_text("read")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LawBroken, match=r"it writes rows\.txt into the working folder"), undisturbed("it"):
        Path("rows.txt").write_text("read")


def test_relative_paths_lead_to_the_files_of_the_present_folder() -> None:
    Path("texts").mkdir()
    Path("texts/words.txt").write_text("please")
    with undisturbed("it"):
        assert Path("texts/words.txt").read_text() == "please"
    assert Path("texts/words.txt").read_text() == "please"


def test_the_clock_is_set_ahead_to_another_day_of_the_month_and_of_the_week_from_every_date() -> None:
    for day in range(3 * 1461):
        now = dt.datetime(2024, 1, 1, 23, 30, tzinfo=dt.UTC) + dt.timedelta(days=day, hours=12 * (day % 2))
        then = now + AHEAD
        for what in ("year", "month", "day", "hour", "minute", "second"):
            assert getattr(now, what) != getattr(then, what), (now, what)
        assert now.weekday() != then.weekday()


def test_a_second_rank_is_one_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with as_second_rank():
        assert os.environ["RANK"] == "1"
    assert "RANK" not in os.environ
    monkeypatch.setenv("RANK", "3")
    with as_second_rank():
        assert os.environ["RANK"] == "1"
    assert os.environ["RANK"] == "3"


@pytest.mark.parametrize(("said", "calls"), [("Fatal Python error: Aborted\n", 2), ("ValueError: no\n", 1)])
def test_a_call_is_repeated_once_if_compiled_code_aborted_its_process(
    said: str, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def fail_first(command: list[str], *_: Any) -> str:
        made.append(command)
        if len(made) > 1:
            Path(command[-1]).write_text("7", encoding="utf-8")
        return said

    monkeypatch.setattr(isolate, "_run", fail_first)
    if calls == 1:
        with pytest.raises(LawBroken, match="ValueError: no"):
            isolate.call_in_new_process("module:function", {}, what="a call")
    else:
        assert isolate.call_in_new_process("module:function", {}, what="a call") == 7
    assert len(made) == calls
