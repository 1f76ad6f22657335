"""The recording of one run, written when the run ends; `run.profile: torch` records torch's operators too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlcore.logging import get_logger
from rlcore.profiling import running
from rlcore.safe_text import write
from rlcore_profile.recorder import NOTHING, Profile
from rlcore_profile.report import as_json, as_trace, make_table

if TYPE_CHECKING:
    from rlcore.protocols import RunView

log = get_logger("profile")
FIRST, COUNT = 2, 2
"""First step of a process whose torch operators are recorded, and the number of such steps. A trace of more steps is
too large to view."""


class Session:
    """The recording of one run on process 0, from its construction to `end`.

    Time that process 0 waits for other processes counts in the phase in which it waits.

    Args:
        run: a run with `run.profile` set.
    """

    def __init__(self, run: RunView) -> None:
        device, self._folder = run.ranks.device, run.dir / "profile"
        self._operators = (
            TorchOperators(self._folder / "operators.json", device) if run.config.run.profile == "torch" else None
        )
        self._profile = Profile(wait=_waiting(device), operators=self._operators)
        self._running = running(self._profile)
        self._running.__enter__()

    def end(self, step: int) -> None:
        """Stop recording after `step` steps, print the table, and write the profile to the run's folder."""
        self._running.__exit__(None, None, None)
        self._profile.close(step)
        try:
            self._folder.mkdir(exist_ok=True)
            if self._operators is not None:
                self._operators.close()
            _write(self._profile, self._folder)
        except OSError as error:  # such as a full disk; an error of the run must not be replaced by this one
            log.warning("the profile could not be written", folder=str(self._folder), reason=str(error))


def _write(profile: Profile, folder: Path) -> None:
    table = make_table(profile)
    with suppress(OSError):
        write(f"{table}trace for chrome://tracing or ui.perfetto.dev: {folder / 'trace.json'}")
    (folder / "table.txt").write_text(table, encoding="utf-8")
    (folder / "phases.json").write_text(as_json(profile), encoding="utf-8")
    (folder / "trace.json").write_text(as_trace(profile), encoding="utf-8")


def _waiting(device: torch.device) -> Callable[[], None] | None:
    """Return a function that synchronizes the device, or None for a CPU, which runs synchronously."""

    def wait() -> None:
        with suppress(torch.AcceleratorError):  # the run's next operation on the device raises it again
            torch.accelerator.synchronize(device)

    return None if device.type == "cpu" else wait


class TorchOperators:
    """Records torch's operators of a few steps, with the phases as ranges, in a separate trace.

    Args:
        file: the trace file that `close` writes.
        device: the device of the run.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        kinds = torch.profiler.supported_activities()
        activities = {torch.profiler.ProfilerActivity.CPU} if device.type == "cpu" else kinds
        self._file, self._recorder = file, torch.profiler.profile(activities=activities)
        self._is_on, self._is_done = False, False

    def begin_step(self, nth: int) -> bool:
        """Start recording at step `FIRST` and stop after `COUNT` steps; return whether the nth step is recorded."""
        if nth == FIRST:
            self._recorder.start()
            self._is_on = True
        elif nth == FIRST + COUNT:
            self._stop()
        return self._is_on

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return a block that marks a phase in the trace of operators."""
        return torch.profiler.record_function(name) if self._is_on else NOTHING

    def close(self) -> None:
        """Stop recording and write the trace.

        Raises:
            OSError: the file cannot be written.
        """
        self._stop()
        if self._is_done:
            self._recorder.export_chrome_trace(str(self._file))
        else:
            log.warning("no operators were recorded: the run ended before the first recorded step", steps=FIRST)

    def _stop(self) -> None:
        if self._is_on:
            self._recorder.stop()
            self._is_on, self._is_done = False, True
