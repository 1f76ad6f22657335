"""What KTO minimises: answers with a verdict, each compared with the mean log-ratio of mismatched answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import Run, by_block, micro_batches, stack_samples
from rlcore.types import Sample, Trajectories
from rlcore_dpo.config import DPOConfig, beta_of
from rlcore_dpo.loss import kto_loss, mismatch
from rlcore_dpo.reference import Reference, summed
from rlcore_preferences.labelled_answers import LabelledSample
from rlcore_preferences.preferences import Pair
from rlcore_transformers.data.limits import shorter

BALANCED = (1.0, 4 / 3)
"""Range of the ratio of weighted desirable to weighted undesirable answers that the paper recommends."""


def read_labelled(rows: Sequence[Any], what: str, config: DPOConfig) -> list[LabelledSample]:
    """Return answers with a verdict; a pair gives two, the chosen one desirable. Empty answers are dropped.

    Warnings count these, and answers that are cut at the end.

    Raises:
        DataError: the rows are neither, or fewer than two are left.
    """
    found = []
    for row in rows:
        if isinstance(row, Pair):
            found += [LabelledSample(row.chosen, label=True), LabelledSample(row.rejected, label=False)]
        elif isinstance(row, LabelledSample):
            found.append(row)
        else:
            raise DataError(
                f"{what}: the pipeline returned {type(row).__name__} objects; loss 'kto' learns from labelled answers: "
                "leave data.sample_pipeline out"
            )
    kept = [row for row in found if any(row.sample.action_mask)]
    log = get_logger("dpo")
    if len(kept) < len(found):
        log.warning("empty answers are dropped", rows=what, kept=len(kept), empty_answer=len(found) - len(kept))
    if cut := sum(not row.sample.ended for row in kept):
        log.warning(
            "answers are longer than data.max_sample_tokens or the model's context; their ends are cut off",
            rows=what, cut=cut, kept=len(kept),
        )  # fmt: skip
    if len(kept) < 2:
        raise DataError(f"{what}: has {len(kept)} answers with text; loss 'kto' needs at least 2")
    good = sum(row.label for row in kept)
    weights = config.desirable_weight * good, config.undesirable_weight * (len(kept) - good)
    if not BALANCED[0] * weights[1] <= weights[0] <= BALANCED[1] * weights[1]:
        log.warning(
            "desirable and undesirable answers are out of balance: set trainer.desirable_weight or "
            "trainer.undesirable_weight, so that weighted desirable answers are 1 to 4/3 times the others",
            rows=what, desirable=good, undesirable=len(kept) - good,
        )  # fmt: skip
    return kept


def stack_labelled(rows: Sequence[LabelledSample]) -> Trajectories:
    """Pad answers into one batch, on the CPU, with the column `labels`: bool[B]."""
    batch = stack_samples([row.sample for row in rows])
    return batch.with_columns(labels=torch.tensor([row.label for row in rows]))


def rotated(batch: Trajectories, limit: int = 0) -> Trajectories:
    """Return each prompt with the answer to the next other prompt of the batch, on the CPU.

    In a batch whose prompts are all equal, it is the next answer. As the rows themselves, they are cut at the end to
    `limit` tokens; 0 leaves them whole.
    """
    prompts, answers, ends = [], batch.action_tokens, batch.ended.tolist()
    for row, chosen, real in zip(batch.tokens, batch.action_mask, batch.mask, strict=True):
        prompts.append(row[real & ~chosen].tolist())
    samples = []
    for i, prompt in enumerate(prompts):
        following = [(i + k) % len(prompts) for k in range(1, len(prompts))]
        j = next((k for k in following if prompts[k] != prompt), following[0])
        tokens = (*prompt, *answers[j])[: limit or None]
        mask = ((False,) * len(prompt) + (True,) * len(answers[j]))[: len(tokens)]
        is_whole = len(tokens) == len(prompt) + len(answers[j])
        samples.append(Sample(tokens, (False, *mask[1:]), ended=ends[j] and is_whole))
    return stack_samples(samples)


class KTOObjective:
    """The loss of answers with a verdict.

    Args:
        config: the trainer's options, resolved.
        policy: the policy.
        reference: the reference.
        run: the run.
    """

    group = 1
    stack = staticmethod(stack_labelled)

    def __init__(self, config: DPOConfig, policy: Policy, reference: Reference, run: Run) -> None:
        self.config, self.policy, self.reference, self.run = config, policy, reference, run

    def loss_of(self, batch: Trajectories) -> Callable[[Trajectories], tuple[Tensor, dict[str, Tensor]]]:
        """Return the loss function of the parts of a batch, the answers of an optimizer step on all ranks.

        Mismatched answers are those of the same batch, after shuffling. Their mean is over the whole batch, so that
        neither micro-batches nor ranks change it.
        """
        return partial(self.loss, kl=self.kl(batch))

    @torch.no_grad()
    def kl(self, batch: Trajectories) -> Tensor:
        """Return z: the mean log-ratio of mismatched answers over the whole batch, at least 0: float[]."""
        config, ranks = self.config, self.run.ranks
        limit = shorter(self.run.data.options.max_sample_tokens, self.policy.max_length)
        mismatched = rotated(batch, limit).to(ranks.device)
        total = torch.zeros((), dtype=torch.float64, device=ranks.device)
        with by_block(self.policy):
            for part, _ in micro_batches(mismatched, config.micro_batch_size, ranks, tokens=config.micro_batch_tokens):
                total += self._ratios(part).double().sum()
        return mismatch((ranks.sum(total) / len(batch)).float()[None])

    def loss(self, part: Trajectories, *, kl: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each answer, float[B], and its metrics."""
        config, labels = self.config, part["labels"]
        beta = beta_of(config, "kto")
        ratios = self._ratios(part)
        total = kto_loss(
            ratios, labels, kl, beta=beta, desirable=config.desirable_weight, undesirable=config.undesirable_weight
        )
        return total, {
            "loss/total": total, "rewards/mean": beta * ratios, "rewards/accuracies": ((ratios > kl) == labels).float(),
            "kl/mismatched": kl.expand_as(ratios), "data/desirable_fraction": labels.float(),
        }  # fmt: skip

    def _ratios(self, part: Trajectories) -> Tensor:
        return summed(self.policy.score(part).logprobs, part.action_mask) - self.reference.logprobs(part)
