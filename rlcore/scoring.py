"""Ask the reward functions about what was sampled."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore import ops
from rlcore.data.text import render_outputs
from rlcore.errors import DataError
from rlcore.rewards import Rewards
from rlcore.types import Prompt, Trajectories


@attrs.frozen(eq=False)
class Scored:
    """Hold what the reward functions said of a batch.

    Attributes:
        outputs: B strings, the text of the chosen tokens.
        scores: float32[B], the score of each sequence; the sum of its dense rewards where those were given.
        dense: float32[B, T] or None, rewards token by token.
        by_name: the scores of each reward function, before weighting.
    """

    outputs: list[str]
    scores: Tensor
    dense: Tensor | None
    by_name: dict[str, list[float | None]]


def ask_rewards(
    rewards: Rewards | None,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    batch: Trajectories,
    *,
    stop_sequences: Sequence[str],
    outputs_begin_text: bool,
    where: str,
) -> Scored:
    """Spell out what each of B prompts was continued by, cut at a stop sequence, and ask what it is worth.

    Args:
        rewards: the reward functions; None scores all 0.
        tokenizer: the policy's.
        prompts: B prompts.
        batch: their continuations.
        stop_sequences: outputs are trimmed at these.
        outputs_begin_text: they are spelt as texts of their own.
        where: what the batch is for, for messages.

    Raises:
        RewardError: a reward function raised, or returned what cannot be used.
        DataError: a sequence without a chosen token.
    """
    counts = batch.num_actions.tolist()
    if 0 in counts:
        row = counts.index(0)
        raise DataError(f"sample {row} of the batch has no chosen token: {prompts[row].text[:80]!r}")
    outputs = render_outputs(tokenizer, batch, prompts, stop_sequences, alone=outputs_begin_text)
    device = batch.tokens.device
    if rewards is None:
        return Scored(outputs, torch.zeros(len(batch), device=device), None, {})
    given = rewards(prompts, outputs, tokenizer=tokenizer, output_tokens=batch.action_tokens, where=where)
    dense = None
    if given.dense is not None:
        flat = torch.tensor([reward for row in given.dense for reward in row], dtype=torch.float32)
        dense = ops.spread(flat.to(device), batch.action_mask)
    scores = torch.tensor(given.totals, dtype=torch.float32, device=device)
    return Scored(outputs, scores, dense, given.by_name)
