"""Ask a user's reward and metric functions about completions, and check what they say number by number."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.profiling import timed
from rlcore.rewards.calls import Call, CallInputs, UserFunction
from rlcore.rewards.choose import ChosenReward, choose_rewards
from rlcore.rewards.forms import resolve
from rlcore.rewards.values import read_metrics, read_rewards
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
        inputs = CallInputs.of(prompts, outputs, tokenizer, where, output_tokens=output_tokens, rows=rows)
        return Call.of(self.functions, inputs)

    @timed("reward functions")
    def read(self, call: Call) -> RewardBatch:
        """Wait for all answers, check them, and add them up.

        Raises:
            RewardError: a coroutine function raised, or a function returned what cannot be used.
        """
        answers, inputs = call.answers(), call.inputs
        num_actions = [len(tokens) for tokens in inputs.arguments["output_tokens"]]
        totals = [0.0] * inputs.size
        rows = [[0.0] * count for count in num_actions]
        any_dense = False
        by_name: dict[str, list[float | None]] = {}
        for function, answer in zip(self.functions, answers, strict=True):
            values = read_rewards(answer, function, inputs, num_actions)
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
    inputs = CallInputs.of(prompts, outputs, tokenizer, where)
    (answer,) = Call.of([function], inputs).answers()
    return read_metrics(answer, function, inputs)
