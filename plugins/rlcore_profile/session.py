"""Record one run, and write its profile when it ends; torch's operators too, for `run.profile: torch`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlcore.logging import get_logger
from rlcore.profiling import running
from rlcore_profile.recorder import NOTHING, Profile
from rlcore_profile.report import as_json, as_trace, make_table

if TYPE_CHECKING:
    from rlcore.protocols import RunView

log = get_logger("profile")
FIRST, COUNT = 2, 2
"""Of which steps of a process torch's operators are recorded: so many, from this one on. A trace of more is too large
to look at."""


class Session:
    """The recording of one run on process 0, from its construction to `end`.

    What process 0 waits for the other processes counts where it waits.

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
        except OSError as error:  # such as a full disk; the error that the run raised must not be replaced
            log.warning("the profile could not be written", folder=str(self._folder), reason=str(error))


def _write(profile: Profile, folder: Path) -> None:
    table = make_table(profile)
    with suppress(OSError):
        sys.stdout.write(f"{table}as a trace for chrome://tracing or ui.perfetto.dev: {folder / 'trace.json'}\n")
        sys.stdout.flush()
    (folder / "table.txt").write_text(table, encoding="utf-8")
    (folder / "phases.json").write_text(as_json(profile), encoding="utf-8")
    (folder / "trace.json").write_text(as_trace(profile), encoding="utf-8")


def _waiting(device: torch.device) -> Callable[[], None] | None:
    """Return what waits until a device has done what it was asked for; a CPU does it at once."""

    def wait() -> None:
        with suppress(torch.AcceleratorError):  # the run hears of it from what it asks for next
            torch.accelerator.synchronize(device)

    return None if device.type == "cpu" else wait


class TorchOperators:
    """Record torch's operators in a few steps, with the phases among them, for a trace of their own.

    Args:
        file: the trace.
        device: where the run computes.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        kinds = torch.profiler.supported_activities()
        wanted = {torch.profiler.ProfilerActivity.CPU} if device.type == "cpu" else kinds
        self._file, self._recorder = file, torch.profiler.profile(activities=wanted)
        self._is_on, self._is_done = False, False

    def begin_step(self, nth: int) -> bool:
        """Begin to record with the second step of this process, end after some; tell whether this one is recorded."""
        if nth == FIRST:
            self._recorder.start()
            self._is_on = True
        elif nth == FIRST + COUNT:
            self._stop()
        return self._is_on

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return what marks a phase among the operators."""
        return torch.profiler.record_function(name) if self._is_on else NOTHING

    def close(self) -> None:
        """Write what was recorded.

        Raises:
            OSError: it cannot be written.
        """
        self._stop()
        if self._is_done:
            self._recorder.export_chrome_trace(str(self._file))
        else:
            log.warning("no operators were recorded: that begins with the second step", steps=FIRST)

    def _stop(self) -> None:
        if self._is_on:
            self._recorder.stop()
            self._is_on, self._is_done = False, True
