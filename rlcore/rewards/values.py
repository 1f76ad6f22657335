"""Check the numbers that reward and metric functions return, and call metric functions."""

from __future__ import annotations

import decimal
import itertools
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence, Sized
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import torch

from rlcore.components import describe_error
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.calls import Call
from rlcore.rewards.chosen_rewards import resolve
from rlcore.safe_text import shorten
from rlcore.types import Prompt

LARGEST_REWARD = torch.finfo(torch.float32).max


def read_rewards(
    result: Any, function: UserFunction, inputs: CallInputs, num_actions: Sequence[int]
) -> list[float | list[float] | None]:
    """Return one entry for each sample: its reward, a list with one reward for each chosen token, or None.

    Raises:
        RewardError: an entry is not a finite number, or their count differs from the number of samples or tokens.
    """
    values: list[float | list[float] | None] = []
    for i, item, count in zip(inputs.indices, _items(result, function, inputs), num_actions, strict=True):
        row = _without_arrays(item, f" for sample {i}", function, inputs)
        if not isinstance(row, (list, tuple)):
            values.append(_number(row, f"sample {i}", function, inputs))
            continue
        if len(row) != count and "output_tokens" not in inputs.arguments:
            inputs.fail(function, f"returned {len(row)} numbers for sample {i}; return one number per sample")
        if len(row) != count:
            inputs.fail(
                function,
                f"returned {len(row)} dense rewards for sample {i}, but the policy chose {count} tokens there; return "
                "one number per sample, or one for each of its output_tokens, EOS included",
            )
        dense = [_number(value, f"sample {i}, token {t}", function, inputs) for t, value in enumerate(row)]
        values.append([0.0 if value is None else value for value in dense])
    return values


def read_metrics(result: Any, function: UserFunction, inputs: CallInputs) -> dict[str, list[float | None]]:
    """Return, for each metric, one number for each sample; None where the function returned None.

    Raises:
        RewardError: `result` is not a mapping from names to numbers, or a count differs from the number of samples.
    """
    if not isinstance(result, Mapping):
        inputs.fail(function, f"returned {shorten(result)}; return a dict from names to {inputs.size} numbers each")
    metrics: dict[str, list[float | None]] = {}
    for key, value in result.items():
        if not isinstance(key, str):
            inputs.fail(function, f"named a metric {key!r} ({type(key).__name__}); names must be strings")
        labelled = attrs.evolve(function, name=f"{function.name}', metric '{key}")
        items = zip(inputs.indices, _items(value, labelled, inputs), strict=True)
        metrics[key] = [_number(item, f"sample {i}", labelled, inputs) for i, item in items]
    return metrics


def _items(result: Any, function: UserFunction, inputs: CallInputs) -> list[Any]:
    """Return the result of a function as a list with one entry per sample."""
    advice = f"return {inputs.size} numbers, one per sample in the samples' order"
    result = _without_arrays(result, "", function, inputs)
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        inputs.fail(function, f"returned {shorten(result)} ({type(result).__name__}); {advice}")
    try:
        items = list(itertools.islice(result, inputs.size + 1))  # it may be endless
    except (Exception, SystemExit) as error:  # noqa: BLE001  a user's generator may raise anything
        inputs.fail(function, f"returned {shorten(result)}, and reading it raised {describe_error(error)}", error)
    if len(items) != inputs.size:
        endless = f"more than {inputs.size}" if len(items) > inputs.size else len(items)
        count = len(result) if isinstance(result, Sized) else endless
        inputs.fail(function, f"returned {count} values for {inputs.size} samples; {advice}")
    return items


def _without_arrays(value: Any, where: str, function: UserFunction, inputs: CallInputs) -> Any:
    """Convert tensors and arrays to numbers and lists; a tensor without readable values ends the run."""
    if not isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        return value
    try:
        return value.tolist()
    except Exception as error:  # noqa: BLE001  each kind of tensor raises its own error
        kind = f"{value.layout} tensor on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
        inputs.fail(
            function,
            f"returned a {kind}{where}, whose numbers cannot be read ({describe_error(error)}); return numbers, or a "
            "dense tensor or array of them",
            error,
        )


def _number(value: Any, where: str, function: UserFunction, inputs: CallInputs) -> float | None:
    if value is None:
        return None
    value = _without_arrays(value, f" for {where}", function, inputs)
    is_number = isinstance(value, (numbers.Real, decimal.Decimal))
    try:
        number = float(value) if is_number else math.nan
    except Exception:  # noqa: BLE001  an integer too large for a float, a signalling NaN, a class of the user's
        number = math.nan
    if not abs(number) <= LARGEST_REWARD:
        kind = "not a finite number" if is_number else f"a {type(value).__name__}, not a number"
        advice = "return numbers, or None for a sample without a reward"
        inputs.fail(function, f"returned {shorten(value)} for {where}, which is {kind}; {advice}")
    return number


def call_metric(
    metric_fn: Any,
    prompts: Sequence[Prompt],
    outputs: Sequence[str],
    tokenizer: Tokenizer | None,
    *,
    where: str = "",
    timeout_s: float | None = None,
    output_tokens: Sequence[Sequence[int]] | None = None,
    rows: Sequence[int] | None = None,
    further: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> dict[str, list[float | None]]:
    """Call a metric function on completions, with the same arguments and time limit as a reward function.

    Args:
        metric_fn: the function.
        prompts: B prompts.
        outputs: the output of each prompt, or of each prompt at `rows`.
        tokenizer: passed to a function that takes it.
        where: the place in the run, for messages.
        timeout_s: seconds that the call may take; None: any number.
        output_tokens: the chosen ids of each output, EOS included; None if they are not known.
        rows: indices of the K prompts in the call; all B by default.
        further: B values of each further argument, such as the `turns` of episodes.

    Returns:
        K numbers for each metric; None where the function returned None.

    Raises:
        RewardError: the function raised, or did not return a mapping from names to B numbers.
    """
    inputs = CallInputs.of(prompts, outputs, tokenizer, where, output_tokens=output_tokens, rows=rows, further=further)
    return _measure(metric_fn, inputs, timeout_s)


def call_metric_on(
    metric_fn: Any,
    prompts: Sequence[Prompt],
    outputs: Mapping[str, Any],
    *,
    where: str = "",
    timeout_s: float | None = None,
) -> dict[str, list[float | None]]:
    """Call a metric function on B outputs that are no text, with the arguments of `Rewards.score`.

    Raises:
        RewardError: the function raised, or did not return a mapping from names to B numbers.
    """
    return _measure(metric_fn, CallInputs.about(prompts, outputs, where), timeout_s)


def _measure(metric_fn: Any, inputs: CallInputs, timeout_s: float | None) -> dict[str, list[float | None]]:
    name, load = resolve(metric_fn, "metric_fn")
    function = UserFunction("metric", name, load(), timeout_s=timeout_s)
    (result,) = Call.of([function], inputs).wait()
    return read_metrics(result, function, inputs)
