"""Ask a user's reward and metric functions about completions, and check what they say number by number."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from rlcore.profiling import timed
from rlcore.rewards.calls import Call, Occasion, UserFunction
from rlcore.rewards.choose import ChosenReward, choose_rewards
from rlcore.rewards.forms import resolve, shorten
from rlcore.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@attrs.frozen(eq=False)
class RewardBatch:
    """Hold what all reward functions together said of B samples.

    Attributes:
        totals: B weighted sums over functions; a dense reward counts with the sum of its tokens.
        dense: None where every function gave one number a sample, which then belongs to the last chosen token. Else B
            rows with a reward for every chosen token, numbers for whole samples already added at the last one.
        by_name: for each function B numbers before weighting, None where it had no opinion.
    """

    totals: list[float]
    dense: list[list[float]] | None
    by_name: dict[str, list[float | None]]

    @classmethod
    def together(cls, parts: Sequence[tuple[Sequence[int], RewardBatch]], num_actions: Sequence[int]) -> RewardBatch:
        """Put what was said of parts of a batch together, as if it had been said of the whole.

        Args:
            parts: places in the batch, and what was said of the samples there; every place once.
            num_actions: B, chosen tokens of each sample.
        """
        totals, by_name = [0.0] * len(num_actions), dict[str, list[float | None]]()
        dense = [[0.0] * count for count in num_actions]
        for rows, part in parts:
            for i, row in enumerate(rows):
                totals[row] = part.totals[i]
                dense[row] = [*dense[row][:-1], part.totals[i]] if part.dense is None else part.dense[i]
            for name, values in part.by_name.items():
                column = by_name.setdefault(name, [None] * len(num_actions))
                for row, value in zip(rows, values, strict=True):
                    column[row] = value
        any_dense = any(part.dense is not None for _, part in parts)
        return cls(totals, dense if any_dense else None, by_name)


@attrs.frozen(eq=False)
class Rewards:
    """Stand for one or more reward functions with their weights."""

    functions: tuple[UserFunction, ...]

    @classmethod
    def build(cls, reward_fn: Any) -> Rewards:
        """Understand any form of `reward_fn`.

        A function is called as `reward_fn(samples=..., prompts=..., outputs=..., output_tokens=..., tokenizer=...,
        **columns)` with only those its signature takes; `samples[i] = prompts[i] + outputs[i]`, and `output_tokens[i]`
        are the ids behind `outputs[i]`, EOS included. Positional-only parameters get samples,
        prompts, outputs in this order; a first parameter with a name of its own (`lambda texts: ...`) gets the samples.
        Coroutine functions run at the same time.

        Raises:
            DataError: it is none of the forms, or a weight is no finite number.
            UnknownReward: nobody registered a reward of that name.
            ConfigError: an option of a registered reward cannot be used.
        """
        return cls.load(choose_rewards(reward_fn))

    @classmethod
    def load(cls, chosen: Iterable[ChosenReward]) -> Rewards:
        """Load functions that were chosen; those of one name are told apart by numbers.

        Raises:
            DataError: one cannot be found, or not be called.
        """
        functions: list[UserFunction] = []
        for each in chosen:
            name, number = each.name, 1
            while name in {other.name for other in functions}:
                number += 1
                name = f"{each.name}_{number}"
            functions.append(UserFunction("reward", name, each.load(), each.weight))
        return cls(tuple(functions))

    @property
    def names(self) -> tuple[str, ...]:
        """Return what the functions go by, in their order."""
        return tuple(function.name for function in self.functions)

    @timed("reward functions")
    def __call__(
        self,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        *,
        tokenizer: PreTrainedTokenizerBase | None,
        output_tokens: Sequence[Sequence[int]],
        where: str = "",
    ) -> RewardBatch:
        """Ask every function about B completions.

        Args:
            prompts: B prompts, one for each output.
            outputs: B texts of chosen tokens.
            tokenizer: passed on to functions that take it.
            output_tokens: B sequences of chosen ids, EOS included: a row of dense rewards has one number for each.
            where: the step, for messages.

        Raises:
            RewardError: a function raised or returned what cannot be used; its name, `where`, the first bad sample and
                the value are in the message.
        """
        return self.read(self.begin(prompts, outputs, tokenizer=tokenizer, output_tokens=output_tokens, where=where))

    @timed("reward functions")
    def begin(
        self,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        *,
        tokenizer: PreTrainedTokenizerBase | None,
        output_tokens: Sequence[Sequence[int]],
        where: str = "",
        rows: Sequence[int] | None = None,
    ) -> Call:
        """Call every function, and wait for none that is a coroutine.

        Args:
            prompts: P prompts.
            outputs: texts of chosen tokens, one for each prompt, or for each of those at `rows`.
            tokenizer: passed on to functions that take it.
            output_tokens: the chosen ids of each output, EOS included.
            where: the step, for messages.
            rows: which of the prompts were continued by the outputs; all if left out.

        Raises:
            RewardError: a function raised, or asks for what is not there.
        """
        occasion = Occasion.of(prompts, outputs, tokenizer, where, output_tokens=output_tokens, rows=rows)
        return Call.of(self.functions, occasion)

    @timed("reward functions")
    def read(self, call: Call) -> RewardBatch:
        """Wait for all answers, check them, and add them up.

        Raises:
            RewardError: a coroutine function raised, or a function returned what cannot be used.
        """
        answers, occasion = call.answers(), call.occasion
        num_actions = [len(tokens) for tokens in occasion.given["output_tokens"]]
        totals = [0.0] * occasion.size
        rows = [[0.0] * count for count in num_actions]
        any_dense = False
        by_name: dict[str, list[float | None]] = {}
        for function, answer in zip(self.functions, answers, strict=True):
            values = _read_rewards(answer, function, occasion, num_actions)
            by_name[function.name] = [math.fsum(value) if isinstance(value, list) else value for value in values]
            for i, value in enumerate(values):
                if isinstance(value, list):
                    any_dense = True
                    rows[i] = [so_far + function.weight * reward for so_far, reward in zip(rows[i], value, strict=True)]
                    totals[i] += function.weight * math.fsum(value)
                elif value is not None:
                    rows[i][-1:] = [last + function.weight * value for last in rows[i][-1:]]
                    totals[i] += function.weight * value
        return RewardBatch(totals, rows if any_dense else None, by_name)


def call_metric(
    metric_fn: Any,
    prompts: Sequence[Prompt],
    outputs: Sequence[str],
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    where: str = "",
) -> dict[str, list[float | None]]:
    """Ask a metric function, called like a reward function, about B completions.

    Returns:
        for each metric B numbers, None where the function gave None.

    Raises:
        RewardError: it raised, or did not return a mapping from names to B numbers.
    """
    name, load = resolve(metric_fn, "metric_fn")
    function = UserFunction("metric", name, load())
    occasion = Occasion.of(prompts, outputs, tokenizer, where)
    (answer,) = Call.of([function], occasion).answers()
    if not isinstance(answer, Mapping):
        occasion.fail(function, f"returned {shorten(answer)}; return a dict from names to {occasion.size} numbers each")
    metrics: dict[str, list[float | None]] = {}
    for key, value in answer.items():
        if not isinstance(key, str):
            occasion.fail(function, f"named a metric {key!r} ({type(key).__name__}); names must be strings")
        labelled = attrs.evolve(function, name=f"{name}', metric '{key}")
        items = zip(occasion.numbers, _items(value, labelled, occasion), strict=True)
        metrics[key] = [_number(item, f"sample {i}", labelled, occasion) for i, item in items]
    return metrics


def _read_rewards(
    answer: Any, function: UserFunction, occasion: Occasion, num_actions: Sequence[int]
) -> list[float | list[float] | None]:
    values: list[float | list[float] | None] = []
    for i, item, count in zip(occasion.numbers, _items(answer, function, occasion), num_actions, strict=True):
        row = _as_row(item)
        if row is None:
            values.append(_number(item, f"sample {i}", function, occasion))
            continue
        if len(row) != count:
            occasion.fail(
                function,
                f"gave sample {i} {len(row)} dense rewards, but the policy chose {count} tokens there; return one "
                "number a sample, or one for each of its output_tokens, EOS included",
            )
        dense = [_number(value, f"sample {i}, token {t}", function, occasion) for t, value in enumerate(row)]
        values.append([0.0 if value is None else value for value in dense])
    return values


def _items(answer: Any, function: UserFunction, occasion: Occasion) -> list[Any]:
    """Split what a function returned into one entry a sample."""
    what_to_do = f"return {occasion.size} numbers, one a sample in the samples' order"
    if isinstance(answer, (torch.Tensor, np.ndarray)):
        answer = answer.tolist()
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        occasion.fail(function, f"returned {shorten(answer)} ({type(answer).__name__}); {what_to_do}")
    items = list(answer)
    if len(items) != occasion.size:
        occasion.fail(function, f"returned {len(items)} values for {occasion.size} samples; {what_to_do}")
    return items


def _as_row(item: Any) -> list[Any] | None:
    if isinstance(item, (torch.Tensor, np.ndarray)):
        item = item.tolist()
    return list(item) if isinstance(item, (list, tuple)) else None


def _number(value: Any, where: str, function: UserFunction, occasion: Occasion) -> float | None:
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
        occasion.fail(function, f"gave {where} {shorten(value)}, which is {kind}; {advice}")
    return number
