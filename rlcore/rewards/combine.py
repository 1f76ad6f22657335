"""Combine reward functions into weighted totals.

Also in this file: decode sampled trajectories and score them with the reward functions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.data.text import render_outputs
from rlcore.errors import DataError, RewardError
from rlcore.profiling import timed
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards
from rlcore.rewards.values import LARGEST_REWARD, Call, read_rewards
from rlcore.types import Episodes, Prompt, Trajectories, tensor_on


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
    def build(cls, reward_fn: object) -> Rewards:
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
    def score(self, prompts: Sequence[Prompt], outputs: Mapping[str, object], *, where: str = "") -> RewardBatch:
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

    @classmethod
    def of_nothing(cls, rewards: Rewards | None, *, device: torch.device) -> Scored:
        """Return the scores of no sequences, of a process that has no prompts of a round."""
        names = rewards.names if rewards else ()
        times = {"time/sample_s": 0.0, "time/score_s": 0.0}
        return cls([], torch.zeros(0, device=device), None, {name: [] for name in names}, times)

    @property
    def totals(self) -> list[float | None]:
        """Return the B scores as numbers; None for a sequence for which every reward function returned None."""
        totals: list[float | None] = self.scores.tolist()
        by_sequence = zip(*self.by_name.values(), strict=True)  # empty without reward functions
        for i, values in enumerate(by_sequence):
            if all(value is None for value in values):
                totals[i] = None
        return totals

    @property
    def columns_by_name(self) -> dict[str, Tensor]:
        """Return the scores of each function, `reward/NAME` (float64[B]), and which are known, `has_reward/NAME`."""
        columns, device = dict[str, Tensor](), self.scores.device
        for name, scores in self.by_name.items():
            columns[f"reward/{name}"] = tensor_on(device, [x or 0.0 for x in scores], torch.float64)
            columns[f"has_reward/{name}"] = tensor_on(device, [x is not None for x in scores], torch.bool)
        return columns

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
