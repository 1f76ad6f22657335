"""Check the numbers that reward and metric functions return."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from rlcore.rewards.calls import CallInputs, UserFunction
from rlcore.rewards.forms import shorten


def read_rewards(
    answer: Any, function: UserFunction, inputs: CallInputs, num_actions: Sequence[int]
) -> list[float | list[float] | None]:
    """Return one entry for each sample: its reward, a list with one reward for each chosen token, or None.

    Raises:
        RewardError: an entry is no finite number, or there are more or fewer entries than samples or tokens.
    """
    values: list[float | list[float] | None] = []
    for i, item, count in zip(inputs.indices, _items(answer, function, inputs), num_actions, strict=True):
        row = _as_row(item)
        if row is None:
            values.append(_number(item, f"sample {i}", function, inputs))
            continue
        if len(row) != count:
            inputs.fail(
                function,
                f"gave sample {i} {len(row)} dense rewards, but the policy chose {count} tokens there; return one "
                "number a sample, or one for each of its output_tokens, EOS included",
            )
        dense = [_number(value, f"sample {i}, token {t}", function, inputs) for t, value in enumerate(row)]
        values.append([0.0 if value is None else value for value in dense])
    return values


def read_metrics(answer: Any, function: UserFunction, inputs: CallInputs) -> dict[str, list[float | None]]:
    """Return, for each metric, one number for each sample; None where the function returned None.

    Raises:
        RewardError: the answer is no mapping from names to numbers, or has more or fewer numbers than samples.
    """
    if not isinstance(answer, Mapping):
        inputs.fail(function, f"returned {shorten(answer)}; return a dict from names to {inputs.size} numbers each")
    metrics: dict[str, list[float | None]] = {}
    for key, value in answer.items():
        if not isinstance(key, str):
            inputs.fail(function, f"named a metric {key!r} ({type(key).__name__}); names must be strings")
        labelled = attrs.evolve(function, name=f"{function.name}', metric '{key}")
        items = zip(inputs.indices, _items(value, labelled, inputs), strict=True)
        metrics[key] = [_number(item, f"sample {i}", labelled, inputs) for i, item in items]
    return metrics


def _items(answer: Any, function: UserFunction, inputs: CallInputs) -> list[Any]:
    """Split what a function returned into one entry a sample."""
    what_to_do = f"return {inputs.size} numbers, one a sample in the samples' order"
    if isinstance(answer, (torch.Tensor, np.ndarray)):
        answer = answer.tolist()
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        inputs.fail(function, f"returned {shorten(answer)} ({type(answer).__name__}); {what_to_do}")
    items = list(answer)
    if len(items) != inputs.size:
        inputs.fail(function, f"returned {len(items)} values for {inputs.size} samples; {what_to_do}")
    return items


def _as_row(item: Any) -> list[Any] | None:
    if isinstance(item, (torch.Tensor, np.ndarray)):
        item = item.tolist()
    return list(item) if isinstance(item, (list, tuple)) else None


def _number(value: Any, where: str, function: UserFunction, inputs: CallInputs) -> float | None:
    if value is None:
        return None
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.ndim(value) == 0:
        value = value.item()
    is_number = isinstance(value, (numbers.Real, decimal.Decimal))
    try:
        number = float(value) if is_number else math.nan
    except (OverflowError, ValueError):  # an integer too large for a float, a signalling NaN
        number = math.nan
    if not abs(number) <= torch.finfo(torch.float32).max:
        kind = "not a finite number" if is_number else f"a {type(value).__name__}, not a number"
        advice = "return numbers, or None for a sample to say nothing of it"
        inputs.fail(function, f"gave {where} {shorten(value)}, which is {kind}; {advice}")
    return number
