"""What a run's folder holds, read for a report: metrics, configuration, how it ended, and what is amiss with the files.

Also in this file: where a run was trained: written to its folder after its first step, and read for the card of its
report.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from rlcore._version import __version__
from rlcore.checkpoints.run_folder import MARK, RunDir, is_locked
from rlcore.config import load_yaml
from rlcore.errors import ConfigError
from rlcore.safe_text import visible
from rlcore_report.metric_groups import Series, read_series
from rlcore_report.run_files import LARGEST_FILE, head_of, list_stamp, read_whole

if TYPE_CHECKING:
    from rlcore.protocols import RunView


LARGEST_STEP = 10**15
"""Numbers of steps beyond this are not ones that a script of a page represents exactly."""
_WRITTEN_BY = re.compile(rf"{re.escape(MARK)}, written by rlcore (\S+?)[;\s]")


SILENT_S, SILENT_STEPS = 600.0, 20
"""A run that goes on is silent if it wrote nothing for so many seconds, and for so many of its steps."""
LEVELS = {"finished": "good", "running": "good", "stopped": "warning", "interrupted": "warning", "silent": "warning"}
"""How much the end of a run is worth a word; any other end is bad."""


@attrs.frozen
class RunEnd:
    """How a run ended, or that it goes on.

    Attributes:
        state: `running`, `silent`, `finished`, `stopped`, `interrupted`, `failed` or `killed`.
        sentence: the step, and the reason.
        command: what continues the run; empty if it is finished or goes on.
    """

    state: str
    sentence: str
    command: str = ""

    @property
    def level(self) -> str:
        """Return `good`, `warning` or `bad`."""
        return LEVELS.get(self.state, "bad")


def state_of(folder: Path, *, is_running: bool, step_s: float = 0.0) -> tuple[str, str]:
    """Return how a run ended in a word, and why; for one that goes on or was killed, since when nothing was written.

    Args:
        folder: the run's folder.
        is_running: whether a process is writing to it.
        step_s: the time of one of its steps, in seconds.
    """
    changed = list_stamp(folder)[1]
    at = datetime.fromtimestamp(changed).astimezone().isoformat(sep=" ", timespec="minutes") if changed else "its start"
    if is_running:
        is_silent = time.time() - changed > max(SILENT_S, SILENT_STEPS * step_s)
        return ("silent" if is_silent else "running"), at
    with suppress(OSError, ValueError, RecursionError, TypeError, AttributeError):
        found = json.loads(head_of(folder / "end.json", 100_000))
        return str(found.get("how")), str(found.get("reason"))
    return "killed", at


@attrs.frozen(eq=False)
class RunRecord:
    """One run as a report shows it.

    Attributes:
        folder: the run's folder.
        metrics: every metric, by its name.
        config: the resolved configuration; empty if config.yaml is damaged.
        plugins: versions of the plugins that took part.
        headline: the metrics that matter most, as the trainer names them.
        end: how it ended, or that it goes on.
        notes: sentences on what is missing or damaged.
    """

    folder: Path
    metrics: Mapping[str, Series]
    config: Mapping[str, Any]
    plugins: Mapping[str, str]
    headline: tuple[str, ...]
    end: RunEnd
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the name of the folder."""
        return self.folder.resolve().name

    @property
    def last_step(self) -> int:
        """Return the last step with metrics; 0 without any."""
        return max((int(series.steps[-1]) for series in self.metrics.values()), default=0)

    @property
    def total_steps(self) -> int | None:
        """Return the planned number of steps; None if it is unknown."""
        passes = self.metrics.get("progress/epoch")
        values = [] if passes is None else passes.values[-1:].tolist()
        return planned_steps(self.option("run", "steps"), self.option("run", "epochs"), values, self.last_step)

    @property
    def step_s(self) -> float:
        """Return the median time of a step in seconds; 0 if it is unknown."""
        seconds = self.metrics.get("time/step_s")
        return float(np.median(seconds.known)) if seconds is not None and len(seconds.known) else 0.0

    def option(self, section: str, name: str) -> Any:
        """Return an option of the configuration; None if it is missing."""
        part = self.config.get(section)
        return part.get(name) if isinstance(part, Mapping) else None


def _read_end(run: RunRecord, *, is_running: bool) -> RunEnd:
    """Return how a run ended, with the command that continues it."""
    step, total = run.last_step, run.total_steps
    state, why = state_of(run.folder, is_running=is_running, step_s=run.step_s)
    done = f"step {step} of {total}" if total else f"step {step}"
    if state in ("running", "silent"):
        since = f", but nothing was written since {why}" if state == "silent" else ""
        return RunEnd(state, f"Still running at {done}{since}.")
    if state == "killed":
        why = f"its process ended without a word, as by SIGKILL or a lack of memory; last written {why}"
    if state == "finished":
        return RunEnd(state, f"Finished at {done}." if why.startswith("all ") else f"Finished at {done}: {why}.")
    text = f"{state.capitalize()} after {done}: {why}".rstrip(".")
    command = RunDir(run.folder).continuation()
    return RunEnd(state, f"{text}." if command else f"{text}. There is no checkpoint to continue from.", command)


def planned_steps(steps: object, epochs: Any, passes: Sequence[float], last_step: int) -> int | None:
    """Return how many steps a run is to make; None if that is unknown.

    Args:
        steps: the option `run.steps`.
        epochs: the option `run.epochs`; steps for each of them follow from those made so far.
        passes: values of `progress/epoch`, of which the last is that of the last step.
        last_step: steps made so far.
    """
    found = [steps] if type(steps) is int and 0 <= steps < LARGEST_STEP else []
    if type(epochs) in (int, float) and len(passes) and passes[-1] > 0:
        total = float(epochs) * last_step / float(passes[-1])
        found += [math.ceil(total - 1e-6)] if 0 < total < LARGEST_STEP else []
    return min(found, default=None)


def read_run(folder: Path, *, is_running: bool | None = None) -> RunRecord:
    """Read a run's folder.

    Args:
        folder: the folder of the run, which may still go on.
        is_running: whether a process is writing to it; by default, whether its lock is held.
    """
    run, notes = RunDir(folder), []
    metrics = read_series(run.metrics)
    for file in (run.metrics, run.completions, run.rollouts):
        with suppress(OSError):
            if (size := file.stat().st_size) > LARGEST_FILE:
                notes.append(f"{file.name} has {size / 1e9:.1f} GB: only its beginning and its end are read.")
    if not metrics:
        notes.append("The run has no metrics: no step and no evaluation has finished.")
    config, plugins, headline = _read_config(run.config, notes)
    is_running = is_locked(folder) if is_running is None else is_running
    record = RunRecord(folder, metrics, config, plugins, headline, RunEnd("", ""), tuple(notes))
    return attrs.evolve(record, end=_read_end(record, is_running=is_running))


def _read_config(file: Path, notes: list[str]) -> tuple[Mapping[str, Any], dict[str, str], tuple[str, ...]]:
    """Return the configuration, the versions of plugins and the headline; append sentences on what cannot be read."""
    try:
        head = read_whole(file)
        config = load_yaml(file)
    except (ConfigError, OSError) as error:
        notes.append(f"config.yaml cannot be read, so options are missing: {error}")
        return {}, {}, ()
    written = _WRITTEN_BY.match(head)
    version = written[1] if written else "(unknown version)"
    if version != __version__:
        notes.append(
            f"The run was written by rlcore {version}, this page by {__version__}: options that have other names are "
            "shown as differing from their defaults."
        )
    plugins = dict(re.findall(r"^# plugin (\S+) (\S+)$", head, re.MULTILINE))
    headline = re.search(r"^# headline (.+)$", head, re.MULTILINE)
    return config, {"rlcore": version, **plugins}, tuple(headline[1].split()) if headline else ()


def write_page(file: Path, page: str) -> None:
    """Write a page beside its place and rename it, so that a reader never finds half of it.

    Raises:
        OSError: it cannot be written.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_text(page, encoding="utf-8")
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


FILE = "report/machine.json"


def record_machine(run: RunView) -> None:
    """Write the device of the run's main process and the number of processes; a full disk is no error here."""
    device = run.ranks.device
    name = str(device.type)
    if name == "cuda":
        import torch

        name = torch.cuda.get_device_name(device)
    file = run.dir / FILE
    with suppress(OSError):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps({"device": name, "processes": run.ranks.world}) + "\n", encoding="utf-8")


def device_of(folder: Path) -> str:
    """Return the device and the number of processes of a run in words; empty if they are unknown."""
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        found = json.loads(read_whole(folder / FILE))
        count = found.get("processes", 1)
        return visible(found.get("device", "")) + (f", {visible(count)} processes" if count != 1 else "")
    return ""
