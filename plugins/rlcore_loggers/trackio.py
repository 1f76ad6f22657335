"""The logger `trackio`."""

from __future__ import annotations

import contextvars
import io
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import trackio
from trackio.sqlite_storage import SQLiteStorage

from rlcore.errors import PluginError
from rlcore.loggers import display_row
from rlcore.protocols import RunView
from rlcore.rewards import CallTooLong, call_within
from rlcore.settings import to_record
from rlcore_loggers.config import TrackioConfig

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")
"""Environment variables that make trackio send runs to another machine."""


class TrackioLogger:
    """Logger of a run to Trackio (`rlcore.protocols.Logger`); a resumed run continues its run at Trackio.

    The logger starts a run of its own and leaves a run that the program started with `trackio.init` unchanged.

    Raises:
        PluginError: trackio cannot start; the message contains the reason.
    """

    keeps_elsewhere = True

    def __init__(self, config: TrackioConfig, run: RunView) -> None:
        self._rows, project = config.completions, config.project
        is_local = config.space_id is None and not any(os.environ.get(name) for name in REMOTE)
        name_file = run.dir / "trackio" / f"run_name-{project}"
        goes_on = run.step > 0 and name_file.exists()
        try:
            if goes_on:
                name = name_file.read_text(encoding="utf-8").strip()
            else:
                taken = SQLiteStorage.get_runs(project) if is_local else []
                name = _free(config.run_name or run.dir.name, taken)
            # An empty context, because trackio finishes the run of the context in which it starts another.
            self._timeout_s = config.timeout_s
            self._run: Any = self._within(
                lambda: contextvars.Context().run(
                    trackio.init, project=project, name=name, group=config.group, space_id=config.space_id,
                    private=config.private, config=to_record(run.config), resume="allow" if goes_on else "never",
                    embed=False, auto_log_gpu=False, auto_log_cpu=False,
                )
            )  # fmt: skip
        except (ValueError, OSError, RuntimeError) as error:
            raise PluginError(
                f"logger 'trackio' cannot start: {error}\n  log in with `hf auth login` to use a Space; or omit "
                "`space_id`, which stores the run on this machine; or remove the logger"
            ) from error
        _write(name_file, name)
        self._logged = _logged(project, name) if goes_on and is_local else frozenset()

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation."""
        self._log(step, metrics)

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Send a table of the first completions."""
        if rows and self._rows:
            shown = [display_row(row) for row in rows[: self._rows]]
            names = dict.fromkeys(name for row in shown for name in row)
            table = [{name: row.get(name) for name in names} for row in shown]
            self._log(step, {"eval/completions": trackio.Table(data=table)})  # type: ignore[arg-type]  # rows may be mappings

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002  trackio has no state of a failed run
        """Send remaining data and finish the run."""
        self._within(self._run.finish)

    def _within(self, call: Callable[[], object]) -> Any:
        try:
            return _quietly(lambda: call_within(self._timeout_s, call))
        except CallTooLong:
            raise TimeoutError(f"the server did not answer within timeout_s = {self._timeout_s:g} seconds") from None

    def _log(self, step: int, values: Mapping[str, Any]) -> None:
        new = {name: value for name, value in values.items() if (step, name) not in self._logged}
        if new:
            self._run.log(new, step=step)


def _free(name: str, taken: Sequence[str]) -> str:
    """Return the name, with a number appended if it is taken: trackio finds a run that is resumed by its name."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    return free


def _logged(project: str, name: str) -> frozenset[tuple[int, str]]:
    """Return the steps and names that a run of this machine has already; trackio would show a repeated step twice."""
    return frozenset((int(row["step"]), key) for row in SQLiteStorage.get_logs(project, name) for key in row)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{text}\n", encoding="utf-8")


def _quietly(call: Callable[[], object]) -> object:
    """Call a function of trackio that prints its progress, without the output."""
    with redirect_stdout(io.StringIO()):
        return call()
