"""Ask the reward functions about what was sampled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore import ops
from rlcore.data.text import render_outputs
from rlcore.errors import DataError
from rlcore.profiling import timed
from rlcore.rewards.combine import RewardBatch, Rewards
from rlcore.types import Prompt, Trajectories


@attrs.frozen(eq=False)
class Scored:
    """Hold what the reward functions said of a batch.

    Attributes:
        outputs: B strings, the text of the chosen tokens.
        scores: float32[B], the score of each sequence; the sum of its dense rewards where those were given.
        dense: float32[B, T] or None, rewards token by token.
        by_name: the scores of each reward function, before weighting.
        times: of a batch that was sampled and scored in one call, `time/sample_s`, seconds until it was sampled, and
            `time/score_s`, those until it was scored as well.
    """

    outputs: list[str]
    scores: Tensor
    dense: Tensor | None
    by_name: dict[str, list[float | None]]
    times: Mapping[str, float] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class Scorer:
    """Spell out what prompts were continued by, cut at a stop sequence, and ask what it is worth.

    Attributes:
        rewards: the reward functions; None scores all 0.
        tokenizer: the policy's.
        stop_sequences: outputs are trimmed at these.
        outputs_begin_text: they are spelt as texts of their own.
        where: what the batch is for, for messages.
    """

    rewards: Rewards | None
    tokenizer: PreTrainedTokenizerBase
    stop_sequences: Sequence[str]
    outputs_begin_text: bool
    where: str

    @timed("reward")
    def __call__(self, prompts: Sequence[Prompt], batch: Trajectories) -> Scored:
        """Score what each of B prompts was continued by.

        Raises:
            RewardError: a reward function raised, or returned what cannot be used.
            DataError: a sequence without a chosen token.
        """
        outputs = self.decode(prompts, batch)
        if self.rewards is None:
            return Scored(outputs, torch.zeros(len(batch), device=batch.tokens.device), None, {})
        given = self.rewards(
            prompts, outputs, tokenizer=self.tokenizer, output_tokens=batch.action_tokens, where=self.where
        )
        return scored(batch, outputs, given)

    def decode(self, prompts: Sequence[Prompt], batch: Trajectories, rows: Sequence[int] | None = None) -> list[str]:
        """Spell out what prompts, or those at `rows`, were continued by.

        Raises:
            DataError: a sequence without a chosen token.
        """
        counts = batch.num_actions.tolist()
        numbers = range(len(prompts)) if rows is None else rows
        if 0 in counts:
            row = numbers[counts.index(0)]
            raise DataError(f"sample {row} of the batch has no chosen token: {prompts[row].text[:80]!r}")
        continued = [prompts[row] for row in numbers]
        return render_outputs(self.tokenizer, batch, continued, self.stop_sequences, alone=self.outputs_begin_text)


def scored(batch: Trajectories, outputs: list[str], given: RewardBatch) -> Scored:
    """Lay out as tensors what the reward functions said of a batch and its outputs."""
    device = batch.tokens.device
    dense = None
    if given.dense is not None:
        flat = torch.tensor([reward for row in given.dense for reward in row], dtype=torch.float32)
        dense = ops.spread(flat.to(device), batch.action_mask)
    return Scored(outputs, torch.tensor(given.totals, dtype=torch.float32, device=device), dense, given.by_name)
