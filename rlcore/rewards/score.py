"""Decode sampled trajectories and score them with the reward functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.data.text import render_outputs
from rlcore.errors import DataError
from rlcore.profiling import timed
from rlcore.protocols import Tokenizer
from rlcore.rewards.call_inputs import CallInputs
from rlcore.rewards.calls import Call
from rlcore.rewards.combine import RewardBatch, Rewards
from rlcore.types import Episodes, Prompt, Trajectories


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
