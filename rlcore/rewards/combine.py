"""Combine reward functions into weighted totals, and call metric functions.

Also in this file: check the numbers that reward and metric functions return; decode sampled trajectories and score them
with the reward functions.
"""

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
from torch import Tensor

from rlcore import ops
from rlcore.components import describe_error
from rlcore.data.text import render_outputs
from rlcore.errors import DataError, RewardError
from rlcore.profiling import timed
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.calls import Call
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards, resolve
from rlcore.safe_text import shorten
from rlcore.types import Episodes, Prompt, Trajectories

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


@attrs.frozen(eq=False)
class Scored:
    """Scores of a batch of B sequences.

    Attributes:
        outputs: B strings, the text of the chosen tokens.
        scores: float32[B], the score of each sequence; for dense rewards, their sum; 0 for a sequence for which every
            reward function returned None.
        dense: float32[B, T], rewards per token; None if no reward function returned any.
        by_name: B scores of each reward function, before weighting.
        times: for a batch that one call sampled and scored, `time/sample_s` (seconds until sampling ended) and
            `time/score_s` (seconds until scoring ended as well).
        numbers: B numbers, None where there is none, of each metric of episodes and of the scores of each source.
    """

    outputs: list[str]
    scores: Tensor
    dense: Tensor | None
    by_name: dict[str, list[float | None]]
    times: Mapping[str, float] = attrs.field(factory=dict)
    numbers: Mapping[str, Sequence[float | None]] = attrs.field(factory=dict)

    @property
    def totals(self) -> list[float | None]:
        """Return the B scores as numbers; None for a sequence for which every reward function returned None."""
        totals: list[float | None] = self.scores.tolist()
        by_sequence = zip(*self.by_name.values(), strict=True)  # empty without reward functions
        for i, values in enumerate(by_sequence):
            if all(value is None for value in values):
                totals[i] = None
        return totals

    def by_source(self, prompts: Sequence[Prompt]) -> Scored:
        """Return the scores with `numbers` for each source of a mixture, such as `reward/mean/web`."""
        totals, sources = self.totals, dict.fromkeys(prompt.source for prompt in prompts if prompt.source)
        scores = {
            f"reward/mean/{source}": [
                score if prompt.source == source else None for prompt, score in zip(prompts, totals, strict=True)
            ]
            for source in sources
        }
        return attrs.evolve(self, numbers={**self.numbers, **scores}) if scores else self


@attrs.frozen(eq=False)
class Scorer:
    """Decode outputs, trim them at stop sequences, and call the reward functions on them.

    Attributes:
        rewards: the reward functions; None gives every sequence the score 0.
        tokenizer: the policy's tokenizer.
        stop_sequences: outputs are trimmed at the first of these.
        outputs_begin_text: decode outputs without their prompts.
        where: the place in the run, for messages.
    """

    rewards: Rewards | None
    tokenizer: Tokenizer
    stop_sequences: Sequence[str]
    outputs_begin_text: bool
    where: str

    @timed("reward")
    def __call__(self, prompts: Sequence[Prompt], batch: Trajectories) -> Scored:
        """Score B sequences, one for each prompt.

        Raises:
            RewardError: a reward function raised, or returned an invalid value.
            DataError: a sequence has no chosen token.
        """
        if isinstance(batch, Episodes):
            return self._score_episodes(prompts, batch)
        outputs = self.decode(prompts, batch)
        if self.rewards is None:
            return Scored(outputs, torch.zeros(len(batch), device=batch.tokens.device), None, {})
        rewards = self.rewards(
            prompts, outputs, tokenizer=self.tokenizer, output_tokens=batch.action_tokens, where=self.where
        )
        return to_scored(batch, outputs, rewards)

    def _score_episodes(self, prompts: Sequence[Prompt], batch: Episodes) -> Scored:
        """Score the episodes that did not fail; those that did have no score."""
        outputs, counts = list(batch.outputs), batch.num_actions.tolist()
        rows, nothing = [i for i, failure in enumerate(batch.failures) if not failure], RewardBatch([], None, {})
        rewards = nothing
        if self.rewards is not None:
            inputs = CallInputs.of(
                prompts, [outputs[row] for row in rows], self.tokenizer, self.where, rows=rows,
                output_tokens=[batch.action_tokens[row] for row in rows], further=batch.arguments,
            )  # fmt: skip
            rewards = self.rewards.read(Call.of(self.rewards.functions, inputs)) if rows else nothing
            rewards = attrs.evolve(
                rewards, by_name={name: rewards.by_name.get(name, []) for name in self.rewards.names}
            )
        scored = to_scored(batch, outputs, RewardBatch.together([(rows, rewards)], counts))
        return attrs.evolve(scored, numbers=batch.numbers)

    def decode(self, prompts: Sequence[Prompt], batch: Trajectories, rows: Sequence[int] | None = None) -> list[str]:
        """Decode the outputs of the prompts, or of the prompts at `rows`.

        Raises:
            DataError: a sequence has no chosen token.
        """
        counts = batch.num_actions.tolist()
        indices = range(len(prompts)) if rows is None else rows
        if 0 in counts:
            row = indices[counts.index(0)]
            raise DataError(f"sample {row} of the batch has no chosen token: {prompts[row].text[:80]!r}")
        continued = [prompts[row] for row in indices]
        return render_outputs(self.tokenizer, batch, continued, self.stop_sequences, alone=self.outputs_begin_text)


def to_scored(batch: Trajectories, outputs: list[str], rewards: RewardBatch) -> Scored:
    """Convert the rewards of a batch to tensors on its device."""
    device = batch.tokens.device
    dense = None
    if rewards.dense is not None:
        flat = torch.tensor([reward for row in rewards.dense for reward in row], dtype=torch.float32)
        dense = ops.spread(flat.to(device), batch.action_mask)
    return Scored(outputs, torch.tensor(rewards.totals, dtype=torch.float32, device=device), dense, rewards.by_name)
