"""The section `sweep` of a configuration, and the sweep that a file and a command line describe.

Also in this file: check, before the first trial, that every option of the space exists and accepts its values.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Literal

import attrs

from rlcore.config import Problems, config, load_yaml, merge, option, structure, unstructure
from rlcore.errors import ConfigError, RLCoreError
from rlcore.settings import TrainConfig
from rlcore_tools.sweep.space import REAL, Dimension, read_space, read_words

SECTION = "sweep"
ROOT = Path("sweeps")
OF_TRIALS = {"run.name": "name", "run.root": "folder", "run.resume": "resume", "run.overwrite": "overwrite"}
"""Options of a run that the sweep sets for each trial."""


@config
class SweepConfig:
    """What a sweep searches, how, and for how long."""

    metric: str = option("eval/reward/mean", "metric of metrics.jsonl by which trials are compared")
    mode: Literal["max", "min"] = option("max", "whether a higher or a lower metric is better")
    value: Literal["last", "best"] = option(
        "last", "value of the metric that counts: the last one of a run, or its best"
    )
    trials: int = option(20, "number of trials, pruned and failed ones included", ge=1, unit="trials")
    parallel: int = option(1, "trials that run at the same time", ge=1, unit="trials")
    sampler: Literal["tpe", "random", "grid"] = option(
        "tpe", "how values are chosen: `tpe` learns from earlier trials, `grid` tries every combination",
        source="arXiv:2304.11127",
    )  # fmt: skip
    prune: Literal["none", "asha", "hyperband", "pbt"] = option(
        "none", "stop trials early that are worse than others at the same step; `pbt` lets another go on from the "
        "checkpoint of a better one in their place, with changed values",
        source="arXiv:1810.05934, 1603.06560, 1711.09846",
    )  # fmt: skip
    min_steps: int | None = option(
        None, "steps before a trial may be pruned; default: eval.every, or 1 if the metric is no evaluation's; `pbt` "
        "compares trials whenever they have made so many", ge=1, unit="steps",
    )  # fmt: skip
    reduction: int = option(
        4, "pruning keeps about one of this many trials at each comparison; `pbt` replaces one of so many", ge=2
    )
    seed: int = option(0, "seed of the sampler", ge=0, le=2**32 - 1)
    time_s: float | None = option(
        None, "stop the sweep after this time; the same command continues it", gt=0, unit="seconds"
    )
    trial_time_s: float | None = option(
        None, "end a trial that takes longer than this, as failed", gt=0, unit="seconds"
    )
    max_failed: int = option(
        3, "end the sweep once this many trials have failed and none succeeded; 0: never", ge=0, unit="trials"
    )
    keep_best: int = option(
        0, "keep the checkpoints and models of this many best trials only; 0: of all trials", ge=0, unit="trials"
    )
    on: Literal["local", "ray"] = option(
        "local", "where trials run: on this machine, or as processes of a Ray cluster (`run.cluster`)"
    )
    space: Mapping[str, Any] = option(
        {}, "option's dotted path: a distribution such as `loguniform(1e-6, 1e-4)`, a list of values, or one value"
    )


FREE = ("trials", "parallel", "time_s", "trial_time_s", "max_failed", "keep_best", "on")
"""Options that may change when a sweep is continued."""


@attrs.frozen
class Sweep:
    """A sweep that is ready to run.

    Attributes:
        options: its options.
        base: the configuration that all trials share.
        dimensions: the swept options.
        folder: the folder of the study and of the trials.
        where: name of the configuration, for errors.
    """

    options: SweepConfig
    base: Mapping[str, Any]
    dimensions: tuple[Dimension, ...]
    folder: Path
    where: str

    def values(self, parameters: Mapping[str, object]) -> dict[str, Any]:
        """Return the values of the swept options by their paths, for a trial's parameters."""
        return {each.path: each.value(parameters[each.path]) for each in self.dimensions if each.path in parameters}

    def configuration(self, values: Mapping[str, object]) -> dict[str, Any]:
        """Return the configuration of a run with these values of the swept options."""
        return merge(self.base, nested(values))


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted paths as nested mappings."""
    found: dict[str, object] = {}
    for path, value in values.items():
        for step in reversed(path.split(".")):
            value = {step: value}  # noqa: PLW2901  from the inside out
        found = merge(found, value)
    return found


def read_sweep(
    file: Path,
    words: Sequence[str],
    given: Mapping[str, object],
    *,
    space: Path | None = None,
    folder: Path | None = None,
) -> Sweep:
    """Return the sweep of a configuration file and a command line.

    Args:
        file: the configuration, with a section `sweep` or without.
        words: options of the space as `path=distribution`, `path=[a, b]` or `path=value`.
        given: options of the section `sweep` from the command line.
        space: another file with a section `sweep`, which the first file's adds to.
        folder: folder of the sweep; by default `sweeps/` and the file's name.

    Raises:
        ConfigError: an option of the section is invalid, a distribution has wrong bounds, or a grid has no end.
    """
    values = load_yaml(file)
    section = _section(values, file)
    if space is not None:
        section = merge(_section(load_yaml(space), space), section)
    where = f"{file} + command line" if words or given or space else str(file)
    entries = read_words(words)
    given_space = section.get("space") if section.get("space") is not None else {}
    if isinstance(given_space, Mapping):
        section = {**section, "space": {**_flat(given_space), **entries}}
    options = structure(SweepConfig, {**section, **given}, where=where, path=SECTION)
    _refuse(options.space, where)
    dimensions, shared = read_space(options.space)
    if not dimensions:
        raise ConfigError(
            f"{where}: no option is swept: give one a distribution, such as "
            "'trainer.optimizer.lr=loguniform(1e-6, 1e-4)', or a list of values, such as 'run.seed=[0, 1, 2]'"
        )
    if options.prune == "pbt":
        _check_population(options, dimensions, where)
    if options.sampler == "grid":
        for each in dimensions:
            each.grid()
    base = merge({name: value for name, value in values.items() if name != SECTION}, nested(shared))
    return Sweep(options, base, tuple(dimensions), folder or ROOT / file.stem, where)


def record_of(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as one configuration: the shared options, and the section `sweep` in full."""
    space = {each.path: each.text for each in sweep.dimensions}
    section = {name: value for name, value in unstructure(sweep.options).items() if name != "space"}
    return {**sweep.base, SECTION: {**section, "space": space}}


def _section(values: Mapping[str, object], file: Path) -> dict[str, Any]:
    section = values.get(SECTION)
    if not isinstance(section, Mapping | None):
        raise ConfigError(f"{file}: {SECTION} = {section!r:.60}: must be a mapping of options")
    return dict(section or {})


def _flat(space: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return the entries of a space by dotted paths: it may be nested, as a configuration is."""
    flat: dict[str, object] = {}
    for key, entry in space.items():
        path = f"{prefix}{key}"
        flat |= _flat(entry, f"{path}.") if isinstance(entry, Mapping) and entry else {path: entry}
    return flat


def _check_population(options: SweepConfig, dimensions: Sequence[Dimension], where: str) -> None:
    if options.sampler == "grid":
        raise ConfigError(f"{where}: --prune pbt changes values while trials run, and --sampler grid fixes them all")
    if options.parallel < 2:
        raise ConfigError(
            f"{where}: --prune pbt compares trials that run at the same time: set --parallel to 2 or more"
        )
    if any(each.path == "run.seed" for each in dimensions):
        raise ConfigError(
            f"{where}: run.seed cannot change in a run that goes on from a checkpoint, as with --prune pbt: leave it "
            "out"
        )


def _refuse(space: Mapping[str, object], where: str) -> None:
    for path in space:
        inner = [name for name in OF_TRIALS if name == path or name.startswith(f"{path}.")]
        if inner:
            raise ConfigError(f"{where}: {path}: the sweep sets {inner[0]} for each trial; leave it out")
        other = next((each for each in space if each.startswith(f"{path}.")), None)
        if other is not None:
            raise ConfigError(f"{where}: {other} is a part of {path}, which has an entry of its own: keep one of them")


def check_sweep(sweep: Sweep) -> None:
    """Check the configuration with values of the space; no data is read and no model is loaded.

    Raises:
        RLCoreError: an option is unknown or does not accept a value, as `rlcore train` says; or no metric would appear.
    """
    first = {each.path: each.probes[0] for each in sweep.dimensions}
    with redirect_stdout(sys.stderr):  # output of a user's module
        try:
            settings = _check(sweep.configuration(first), sweep.where)
        except ConfigError as error:
            raise ConfigError(_explain(error, sweep.dimensions)) from error
        errors = dict.fromkeys(_errors(sweep, first))
    if errors:
        raise ConfigError("\n".join(errors))
    _check_metric(sweep, settings)


def _errors(sweep: Sweep, first: Mapping[str, object]) -> Iterator[str]:
    """Yield what is wrong with further values of each option."""
    for each in sweep.dimensions:
        for value in each.probes[1:]:
            try:
                _check(sweep.configuration({**first, each.path: value}), sweep.where)
            except RLCoreError as error:
                yield _explain(error, [each])


def _explain(error: RLCoreError, dimensions: Sequence[Dimension]) -> str:
    """Return an error, with how to write a list as a value, or whole numbers, if an option needs them."""
    text, hints = str(error), []
    for each in dimensions:
        if f"{each.path} = " in text and each.kind == "choice" and "must be a list" in text:
            values = list(each.choices)
            hints.append(f"{each.path}={values} chooses one of its entries; one value that is a list is [{values}]")
        elif f"{each.path} = " in text and each.kind in REAL and "must be a whole number" in text:
            hints.append(f"for {each.path}, use int(low, high) or logint(low, high)")
    return "; ".join([text, *hints])


def _check(values: Mapping[str, object], where: str) -> TrainConfig:
    from rlcore.optim.optimization import Optimizers
    from rlcore.plugins.choice import Chooser, Wrapping
    from rlcore.plugins.metadata import configured
    from rlcore.training.inputs import DATA_INPUTS, Inputs
    from rlcore.training.run_components import choose

    settings = structure(TrainConfig, values, where=where)
    with configured(settings.plugins.disable, settings.plugins.only):
        named = {name: getattr(settings.data, name) for name in DATA_INPUTS}
        inputs = Inputs(model=settings.model.get("path"), tokenizer=settings.model.get("tokenizer"), **named)
        problems, wrapping = Problems(), Wrapping(config=settings)
        chosen = choose(settings, inputs, where, wrapping, problems)
        trainer: Any = chosen.trainer
        options = None if trainer is None else trainer.options
        problems.attempt(Optimizers, options, Chooser(where, wrapping, problems))
        if trainer is not None:
            component = trainer.component
            problems.attempt(inputs.require, component.name, component.target().needs)
        problems.check()
    return settings


def _check_metric(sweep: Sweep, settings: TrainConfig) -> None:
    """Refuse a sweep whose metric no run would write, or that would never compare trials."""
    if sweep.options.prune == "pbt" and not settings.checkpoint.every and not settings.checkpoint.keep_best:
        raise ConfigError(
            f"{sweep.where}: --prune pbt lets trials go on from checkpoints of others: set checkpoint.every, such as "
            "to eval.every"
        )
    if not sweep.options.metric.startswith("eval/"):
        return
    if not settings.eval.every and not settings.eval.at_end:
        raise ConfigError(
            f"{sweep.where}: no run would have {sweep.options.metric}: set eval.every or eval.at_end, or choose "
            "another metric"
        )
    if sweep.options.prune != "none" and not settings.eval.every:
        raise ConfigError(
            f"{sweep.where}: pruning compares trials at their evaluations: set eval.every, such as eval.every=10"
        )
