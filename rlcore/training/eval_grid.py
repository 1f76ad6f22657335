"""The ways of sampling that an evaluation goes through, what their metrics are called, and which of them counts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rlcore.config import structure, unstructure
from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.types import Metrics

LISTS = ("stop_sequences", "eos_token_ids")
"""Options that are lists themselves: a list of lists sweeps one."""
UNSWEPT = {"batch_size": "it changes no draw (eval.batch_size says how many prompts are continued at once)"}
"""Options of which several values make no sense, and why."""


def eval_samplings(base: SamplingConfig, changes: Mapping[str, Any]) -> Iterator[tuple[str, SamplingConfig]]:
    """Yield each way of sampling that an evaluation uses, with the suffix its metrics carry.

    Any option of `changes` may be a list (of lists, for an option that is one itself), and every combination is
    yielded: `{"beta": [0, 4], "temperature": [0.5, 1]}` gives `@beta=0@temperature=0.5`, `@beta=0@temperature=1` and so
    on, options in the order they are written in. An option with one value is in no suffix.

    Args:
        base: options for what `changes` leaves out.
        changes: options by name, each with its value or a list of values.

    Raises:
        ConfigError: an unknown or misfitting option, an empty list, a value twice, or a list for an option of UNSWEPT.
    """
    swept = {name: value for name, value in changes.items() if _is_sweep(name, value)}
    for name, values in swept.items():
        _check_values(name, values)
    plain = unstructure(base)
    for values in itertools.product(*swept.values()):
        chosen = dict(zip(swept, values, strict=True))
        suffix = "".join(f"@{name}={value}" for name, value in chosen.items())
        yield suffix, structure(SamplingConfig, {**plain, **changes, **chosen}, where="eval.gen")


def refuse_sweeps(gen: Any, where: str) -> None:
    """Refuse a list of values in `gen`, where older libraries had it, and say where it belongs.

    Raises:
        ConfigError: an option that takes one value is given a list.
    """
    given = gen if isinstance(gen, Mapping) else {}
    for name in unstructure(SamplingConfig()):
        value = given.get(name)
        if name not in LISTS and isinstance(value, (list, tuple)):
            raise ConfigError(
                f"{where}: gen.{name} = {list(value)}: training samples in one way; a list sweeps evaluations: set "
                f"eval.gen.{name} to it, and gen.{name} to one value or to none"
            )


def find_score(metrics: Metrics, metric: str, suffixes: Sequence[str], mode: Literal["max", "min"]) -> float | None:
    """Return what the metric that tells the best checkpoint says; of a sweep, the best of its values.

    Args:
        metrics: of one evaluation.
        metric: a name, with or without the suffix of a combination.
        suffixes: those of `eval_samplings`.
        mode: which of a sweep's values is the best.

    Returns:
        None where no metric has that name; nan where none of its values is a finite number.
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
