"""The grid of sampling options that an evaluation sweeps, and the metric suffix of each combination."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlcore.config import structure, unstructure
from rlcore.errors import ConfigError
from rlcore.safe_text import shorten
from rlcore.settings import SamplingConfig
from rlcore.types import Metrics

LISTS = ("stop_sequences", "eos_token_ids")
"""Options whose value is a list; a list of lists sweeps them."""
UNSWEPT = {"batch_size": "it does not change the samples (eval.batch_size is the number of prompts sampled at once)"}
"""Options that cannot be swept, each with the reason."""


def eval_samplings(base: SamplingConfig, changes: Mapping[str, Any]) -> Iterator[tuple[str, SamplingConfig]]:
    """Yield the sampling options of each combination that an evaluation uses, with the suffix of its metrics.

    Any option of `changes` may be a list of values (a list of lists where one value is a list). All combinations are
    yielded: `{"beta": [0, 4], "temperature": [0.5, 1]}` gives `@beta=0@temperature=0.5`, `@beta=0@temperature=1` and so
    on, with the options in the order of `changes`. An option with one value is not part of the suffix.

    Args:
        base: the options that `changes` does not contain.
        changes: options by name, each with its value or a list of values.

    Raises:
        ConfigError: an option is unknown, a value cannot be used, a list is empty or repeats a value, or an option of
            UNSWEPT has a list.
    """
    swept = {name: value for name, value in changes.items() if _is_sweep(name, value)}
    plain = unstructure(base)
    for name, values in swept.items():
        if name in plain:  # others are refused below, without their values
            _check_values(name, values)
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        suffix = "".join(f"@{name}={value}" for name, value in chosen.items())
        yield suffix, structure(SamplingConfig, {**plain, **changes, **chosen}, where="eval.gen")


def refuse_sweeps(gen: Mapping[str, Any], where: str) -> None:
    """Refuse a list of values in `gen`; only `eval.gen` takes one.

    Raises:
        ConfigError: an option that takes one value has a list.
    """
    lines = [
        f"{where}: gen.{name} = {shorten(list(gen[name]))}: training uses one value, only evaluations sweep a list: "
        f"set eval.gen.{name} to the list, and gen.{name} to one value or leave it out"
        for name in sweeps_in(gen)
    ]
    if lines:
        raise ConfigError("\n".join(lines))


def sweeps_in(gen: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that have lists of values."""
    return [
        name for name in unstructure(SamplingConfig()) if name not in LISTS and isinstance(gen.get(name), (list, tuple))
    ]


def find_score(metrics: Metrics, metric: str, suffixes: Sequence[str], mode: Literal["max", "min"]) -> float | None:
    """Return the value of the metric that ranks checkpoints; of a sweep, the best of its values.

    Args:
        metrics: the metrics of one evaluation.
        metric: its name, with or without the suffix of a combination.
        suffixes: the suffixes that `eval_samplings` yields.
        mode: whether the largest or the smallest value is the best.

    Returns:
        None if no metric has that name; nan if none of its values is finite.
    """
    if metric in metrics:
        return metrics[metric]
    found = [metrics[metric + suffix] for suffix in suffixes if metric + suffix in metrics]
    finite = [value for value in found if math.isfinite(value)]
    if not finite:
        return math.nan if found else None
    return max(finite) if mode == "max" else min(finite)


def _is_sweep(name: str, value: Any) -> bool:
    if not isinstance(value, (list, tuple)):
        return False
    return name not in LISTS or any(isinstance(part, (list, tuple)) for part in value)


def _check_values(name: str, values: Sequence[Any]) -> None:
    if name in UNSWEPT:
        raise ConfigError(f"eval.gen.{name} = {list(values)}: cannot be a list: {UNSWEPT[name]}")
    if not values:
        raise ConfigError(f"eval.gen.{name} is an empty list; give the values to evaluate at, or leave it out")
    twice = [value for i, value in enumerate(values) if value in values[:i]]
    if twice:
        raise ConfigError(f"eval.gen.{name} = {list(values)}: holds {twice[0]!r} twice; give each value once")
