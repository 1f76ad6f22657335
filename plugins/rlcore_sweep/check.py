"""Check, before the first trial, that every option of the space exists and accepts its values."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any

from rlcore.config import Problems, structure
from rlcore.errors import ConfigError, RLCoreError
from rlcore.settings import TrainConfig
from rlcore_sweep.space import REAL, Dimension
from rlcore_sweep.sweep_options import Sweep


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


def _errors(sweep: Sweep, first: Mapping[str, Any]) -> Iterator[str]:
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


def _check(values: Mapping[str, Any], where: str) -> TrainConfig:
    from rlcore.optim.optimization import Optimizers
    from rlcore.plugins.choice import Chooser
    from rlcore.plugins.switches import configured
    from rlcore.plugins.wrappers import Wrapping
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
