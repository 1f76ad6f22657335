"""What a trial runs with, the best configuration, and trials that go on from the checkpoint of a better one.

Also in this file: population based training: which trials go on from the checkpoint of a better one, and with which
values; pure.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import attrs

from rlcore.config import merge
from rlcore.errors import CheckpointError
from rlcore_tools.sweep.screen import Study, TrialRecord
from rlcore_tools.sweep.space import LOGARITHMIC, Dimension
from rlcore_tools.sweep.sweep_folder import SweepFolder, checkpoint_of, name_of, write_yaml
from rlcore_tools.sweep.sweep_options import Sweep

FACTORS = (0.8, 1.2)
"""A number is multiplied by one of these."""
RESAMPLED = 0.25
"""Share of the values that are drawn anew instead."""


def choose_donor(
    number: int, measured: Mapping[int, float], reduction: int, *, is_maximised: bool, random: Random
) -> int | None:
    """Return the trial that takes the place of another; None if that one is not among the worst.

    Of n trials, the worst and the best are ceil(n / reduction), and at most half.

    Args:
        number: the trial that has just been measured.
        measured: the metric at the same step of every trial that has reached it, by its number; nan is worst.
        reduction: one of so many trials is replaced.
        is_maximised: whether a higher metric is better.
        random: chooses among the best.
    """

    def badness(each: int) -> tuple[float, int]:
        value = measured[each]
        return (math.inf if math.isnan(value) else -value if is_maximised else value), each

    ranked = sorted(measured, key=badness)
    count = min(math.ceil(len(ranked) / reduction), len(ranked) // 2)
    if not count or number not in ranked[-count:]:
        return None
    return random.choice(ranked[:count])


def explore(dimensions: Sequence[Dimension], parameters: Mapping[str, object], random: Random) -> dict[str, object]:
    """Return changed parameters of the study for a trial that goes on from another with `parameters`."""
    return {each.path: _changed(each, parameters[each.path], random) for each in dimensions}


def _changed(dimension: Dimension, parameter: Any, random: Random) -> Any:
    is_drawn = random.random() < RESAMPLED
    if dimension.kind == "choice":
        labels = list(dimension.labels)
        if is_drawn:
            return random.choice(labels)
        at = labels.index(parameter) + random.choice((-1, 1))
        return labels[min(max(at, 0), len(labels) - 1)]
    return _number(dimension, _drawn(dimension, random) if is_drawn else parameter * random.choice(FACTORS))


def _drawn(dimension: Dimension, random: Random) -> float:
    if dimension.kind in LOGARITHMIC:
        return math.exp(random.uniform(math.log(dimension.low), math.log(dimension.high)))
    return random.uniform(dimension.low, dimension.high)


def _number(dimension: Dimension, number: float) -> Any:
    """Return the allowed number that is nearest."""
    number = min(max(number, dimension.low), dimension.high)
    if dimension.step is not None:
        number = dimension.low + dimension.step * round((number - dimension.low) / dimension.step)
    return dimension.value(number)


ATTEMPTS = 5
"""How often a checkpoint is copied that its run deletes meanwhile, because it has a newer one."""


def settings_of(sweep: Sweep, folder: SweepFolder, trial: TrialRecord) -> dict[str, Any]:
    """Return the configuration of a trial, which resumes from its newest checkpoint, or begins.

    Raises:
        CheckpointError: the checkpoint of another trial, from which it was to go on, is lost.
    """
    run: dict[str, Any] = {
        "name": name_of(trial.number), "root": str(folder.trials), "resume": "auto", "overwrite": False,
        "push_to_hub": None,
    }  # fmt: skip
    shared = sweep.base.get("run") or {}
    if sweep.options.on == "ray" and not shared.get("cluster"):
        run["cluster"] = "ray"
    if trial.donor is not None:
        run["accept_changes"] = [*shared.get("accept_changes", ()), *(each.path for each in sweep.dimensions)]
        if checkpoint_of(folder.run(trial.number)) is None:
            run |= {"resume": str(_inherited(folder, trial)), "overwrite": True}
    return merge(sweep.configuration(sweep.values(trial.parameters)), {"run": run})


def _inherited(folder: SweepFolder, trial: TrialRecord) -> Path:
    """Return the checkpoint of another trial from which a trial begins."""
    source = folder.inherited(trial.number)
    if checkpoint_of(source) != trial.begun:
        raise CheckpointError(
            f"{source} lacks the checkpoint of step {trial.begun} of trial {trial.donor}, from which this trial was "
            "to go on"
        )
    return source / "checkpoints" / f"{trial.begun:08d}"


@attrs.frozen
class Population:
    """The trials of `prune: pbt`, which run at the same time; of any other sweep, nothing is replaced.

    Attributes:
        sweep: the sweep.
        folder: its folder.
        study: its trials.
    """

    sweep: Sweep
    folder: SweepFolder
    study: Study

    @property
    def every(self) -> int | None:
        """Return after how many steps trials are compared again; None if they are no population."""
        return self.study.min_steps if self.sweep.options.prune == "pbt" else None

    @property
    def is_full(self) -> bool:
        """Whether no trial begins any more without another's checkpoint."""
        options = self.sweep.options
        founders = sum(each.donor is None and each.state != "failed" for each in self.study.records())
        return options.prune == "pbt" and founders >= options.parallel

    def find_donor(self, number: int) -> int | None:
        """Return the trial from whose checkpoint another goes on instead of a running one; None if that one stays.

        Trials are compared once for each `min_steps` steps, by their first measurement after these, when those have
        come that are at most `min_steps` behind: which of them comes first makes no difference.
        """
        options, every, trial = self.sweep.options, self.every, self.study.record(number)
        if every is None:
            return None
        start = max(trial.measured, default=0) // every * every
        if start <= max(trial.begun, trial.compared):
            return None
        present = {each.number: each for each in self.study.records() if each.begun < start and each.state != "failed"}
        if any(each.state == "unfinished" and start - every <= _last_step(each) < start for each in present.values()):
            return None
        steps = {each: _first_step(record, start, start + every) for each, record in present.items()}
        found = choose_donor(
            number, {each: present[each].measured[at] for each, at in steps.items() if at is not None},
            options.reduction, is_maximised=self.study.is_maximised,
            random=Random(f"{options.seed} {number} {start}"),  # noqa: S311  no secret
        )  # fmt: skip
        donor = None if found is None else present[found]
        if donor is None or donor.state != "unfinished":
            self.study.note_comparison(number, start)
            return None
        at = checkpoint_of(self.folder.run(donor.number))
        if at is None or at <= trial.begun:
            return None  # the donor has been measured and not saved yet: the trial is compared again
        self.study.note_comparison(number, start)
        return found if self._is_in_time(at) else None

    def _is_in_time(self, step: int) -> bool:
        """Return whether there is more to learn after a step."""
        most = self.study.total_steps
        return most is None or step < most

    def stop(self, number: int, donor: int) -> bool:
        """Note that a trial ends, and keep the donor's checkpoint: the donor may make all its steps before that.

        Returns:
            Whether there is such a checkpoint; without one, the trial stays.
        """
        if not self._keep_newest(donor, number):
            return False
        self.study.note_beaten(number, donor)
        return True

    def replace(self, number: int, donor: int) -> list[int]:
        """End a trial that was stopped, and return the number of that which goes on in its place."""
        self._keep_newest(donor, number)
        kept = self.folder.kept(number)
        begun = checkpoint_of(kept)
        if begun is None:
            self.study.prune(number, f"{kept} lacks the checkpoint of trial {donor}, from which another should go on")
            return []
        random = Random(f"{self.sweep.options.seed} {number} values")  # noqa: S311  no secret
        values = explore(self.sweep.dimensions, self.study.record(donor).parameters, random)
        successor = self.study.succeed(donor, begun, values).number
        kept.replace(self.folder.inherited(successor))
        shutil.rmtree(self.folder.inherited(number), ignore_errors=True)
        self.study.prune(number, f"trial {successor} goes on from step {begun} of trial {donor}")
        return [successor]

    def _keep_newest(self, donor: int, number: int) -> bool:
        """Keep a trial's newest checkpoint for the successor of another, or else what is kept; return if one is."""
        kept = self.folder.kept(number)
        fresh = kept.with_suffix(".fresh")
        step = _copy_checkpoint(self.folder.run(donor), fresh)
        if step is not None and self._is_in_time(step):
            shutil.rmtree(kept, ignore_errors=True)
            fresh.replace(kept)
        shutil.rmtree(fresh, ignore_errors=True)
        return kept.is_dir()


def _copy_checkpoint(source: Path, target: Path) -> int | None:
    """Copy the newest checkpoint of a run, and return its step; files are linked where that is possible."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(target, ignore_errors=True)
        step = checkpoint_of(source)
        if step is None:
            return None
        with suppress(OSError, shutil.Error):  # deleted meanwhile
            name = f"checkpoints/{step:08d}"
            shutil.copytree(source / name, target / name, copy_function=_link)
            if (source / "start").is_dir():
                shutil.copytree(source / "start", target / "start", copy_function=_link)
            return step
    return None


def _first_step(record: TrialRecord, start: int, end: int) -> int | None:
    return min((step for step in record.measured if start <= step < end), default=None)


def _last_step(record: TrialRecord) -> int:
    return max(record.measured, default=record.begun)


def write_best(sweep: Sweep, folder: SweepFolder, study: Study) -> None:
    """Write the configuration of the best trial, which `rlcore train` runs."""
    best = study.best()
    if best is None:
        return
    lines = [f"# The best trial of {folder.path}: {best.number}, {sweep.options.metric} {best.value!r}"]
    if best.donor is not None:
        lines += [
            f"# It went on from step {best.begun} of trial {best.donor} with these values. A run that has them",
            f"# from its beginning learns otherwise. The model of the trial is in {folder.run(best.number)}.",
        ]
    write_yaml(folder.best, sweep.configuration(sweep.values(best.parameters)), lines)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
