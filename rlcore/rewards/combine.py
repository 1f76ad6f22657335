"""Combine reward functions into weighted totals, and call metric functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from rlcore.errors import RewardError
from rlcore.profiling import timed
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.calls import Call
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards, resolve
from rlcore.rewards.values import LARGEST_REWARD, read_metrics, read_rewards
from rlcore.types import Prompt


@attrs.frozen(eq=False)
class RewardBatch:
    """Rewards of B samples, combined over all reward functions.

    Attributes:
        totals: B weighted sums over functions; a dense reward contributes the sum over its tokens.
        dense: B rows with one reward for each chosen token; rewards of whole samples are added at the last chosen
            token. None if every function returned one number per sample.
        by_name: B unweighted numbers of each function; None where the function returned None.
    """

    totals: list[float]
    dense: list[list[float]] | None
    by_name: dict[str, list[float | None]]

    @classmethod
    def together(cls, parts: Sequence[tuple[Sequence[int], RewardBatch]], num_actions: Sequence[int]) -> RewardBatch:
        """Merge the rewards of sub-batches into those of the whole batch.

        Args:
            parts: row indices in the batch and the rewards of these rows; every row occurs once.
            num_actions: B, number of chosen tokens of each sample.
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
    """One or more reward functions with their weights."""

    functions: tuple[UserFunction, ...]

    @classmethod
    def build(cls, reward_fn: Any) -> Rewards:
        """Build rewards from any form of `reward_fn`.

        A function is called as `reward_fn(samples=..., prompts=..., outputs=..., messages=..., output_tokens=...,
        tokenizer=..., **columns)`, with only the arguments in its signature; `samples[i] = prompts[i] + outputs[i]`,
        `output_tokens[i]` are the ids of `outputs[i]`, EOS included, and `messages[i]` is the conversation with the
        output as its last message, or None if the prompt is a plain text. Positional-only parameters receive samples,
        prompts and outputs in this order; a first parameter with any other name (`lambda texts: ...`) receives the
        samples. Coroutine functions run concurrently.

        Raises:
            DataError: `reward_fn` has none of the allowed forms, or a weight is not a finite number.
            UnknownReward: no reward is registered under that name.
            ConfigError: an option of a registered reward is invalid.
        """
        return cls.load(choose_rewards(reward_fn))

    @classmethod
    def load(cls, chosen: Iterable[ChosenReward], *, timeout_s: float | None = None) -> Rewards:
        """Load the chosen functions; functions of the same name are numbered (`name_2`).

        Args:
            chosen: the functions, not yet loaded.
            timeout_s: seconds that one call of a function may take; None: any number.

        Raises:
            DataError: a function cannot be found or is not callable.
        """
        functions: list[UserFunction] = []
        for each in chosen:
            name, number = each.name, 1
            while name in {other.name for other in functions}:
                number += 1
                name = f"{each.name}_{number}"
            functions.append(UserFunction("reward", name, each.load(), each.weight, timeout_s))
        return cls(tuple(functions))

    @property
    def names(self) -> tuple[str, ...]:
        """Return the functions' names, in their order."""
        return tuple(function.name for function in self.functions)

    @timed("reward functions")
    def __call__(
        self,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        *,
        tokenizer: Tokenizer | None,
        output_tokens: Sequence[Sequence[int]],
        where: str = "",
    ) -> RewardBatch:
        """Call every function on B completions, and combine the rewards.

        Args:
            prompts: B prompts, one for each output.
            outputs: B texts of chosen tokens.
            tokenizer: passed to functions that take it.
            output_tokens: B sequences of chosen ids, EOS included; a row of dense rewards has one number for each id.
            where: the step, for messages.

        Raises:
            RewardError: a function raised or returned an invalid value; the message names the function, `where`, the
                first invalid sample and the value.
        """
        return self.read(self.begin(prompts, outputs, tokenizer=tokenizer, output_tokens=output_tokens, where=where))

    @timed("reward functions")
    def score(self, prompts: Sequence[Prompt], outputs: Mapping[str, Any], *, where: str = "") -> RewardBatch:
        """Call every function on B outputs that are no text, and combine the rewards.

        Args:
            prompts: B prompts, one for each output.
            outputs: B outputs by the name of the argument, such as `{"images": images}`; the first of them is also
                passed to a first parameter of any other name.
            where: the step, for messages.

        Raises:
            RewardError: a function raised or returned an invalid value.
        """
        return self.read(Call.of(self.functions, CallInputs.about(prompts, outputs, where)))

    @timed("reward functions")
    def begin(
        self,
        prompts: Sequence[Prompt],
        outputs: Sequence[str],
        *,
        tokenizer: Tokenizer | None,
        output_tokens: Sequence[Sequence[int]],
        where: str = "",
        rows: Sequence[int] | None = None,
    ) -> Call:
        """Call every function, without waiting for coroutines.

        Args:
            prompts: B prompts.
            outputs: texts of chosen tokens, one for each prompt, or for each prompt at `rows`.
            tokenizer: passed to functions that take it.
            output_tokens: the chosen ids of each output, EOS included.
            where: the step, for messages.
            rows: indices of the prompts that the outputs belong to; all by default.

        Raises:
            RewardError: a function raised, or has an unknown parameter.
        """
        inputs = CallInputs.of(prompts, outputs, tokenizer, where, output_tokens=output_tokens, rows=rows)
        return Call.of(self.functions, inputs)

    @timed("reward functions")
    def read(self, call: Call) -> RewardBatch:
        """Wait for all results, check them, and sum the weighted rewards.

        Raises:
            RewardError: a coroutine function raised, or a function returned an invalid value.
        """
        results, inputs = call.wait(), call.inputs
        num_actions = inputs.num_actions
        totals = [0.0] * inputs.size
        rows = [[0.0] * count for count in num_actions]
        any_dense = False
        by_name: dict[str, list[float | None]] = {}
        for function, result in zip(self.functions, results, strict=True):
            values = read_rewards(result, function, inputs, num_actions)
            by_name[function.name] = [math.fsum(value) if isinstance(value, list) else value for value in values]
            for i, value in enumerate(values):
                if isinstance(value, list):
                    any_dense = True
                    rows[i] = [so_far + function.weight * reward for so_far, reward in zip(rows[i], value, strict=True)]
                    totals[i] += function.weight * math.fsum(value)
                elif value is not None:
                    rows[i][-1:] = [last + function.weight * value for last in rows[i][-1:]]
                    totals[i] += function.weight * value
        for i, total, row in zip(inputs.indices, totals, rows, strict=True):
            if not all(abs(number) <= LARGEST_REWARD for number in ((total, *row) if any_dense else (total,))):
                raise RewardError(
                    f"{inputs.place}: the weighted sum of the rewards of sample {i} is {total:g}, which is outside the "
                    "range of float32; lower the weights or the rewards"
                )
        return RewardBatch(totals, rows if any_dense else None, by_name)


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
