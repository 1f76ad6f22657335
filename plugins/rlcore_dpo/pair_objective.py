"""What DPO minimises for pairs: log-probs of both answers become log-ratios, those a loss and metrics of each pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs
from torch import Tensor

from rlcore.errors import DataError
from rlcore.protocols import Policy
from rlcore.training import stack_pairs, usable_pairs
from rlcore.types import Pair, Trajectories
from rlcore_dpo import loss as losses
from rlcore_dpo.config import DPOConfig
from rlcore_dpo.reference import Reference, summed

ROUNDING = 1e-6
"""Relative error of the log-prob of an answer: at step 0 the policy equals its reference up to this."""
PairLoss = Callable[[Tensor, Tensor], Tensor]


def pair_loss(config: DPOConfig) -> PairLoss:
    """Return the function of `loss.py` that the options name, with its options."""
    smoothed = {"label_smoothing": config.label_smoothing}
    table: dict[str, tuple[Callable[..., Tensor], dict[str, Any]]] = {
        "sigmoid": (losses.sigmoid_loss, smoothed),
        "robust": (losses.robust_loss, smoothed),
        "hinge": (losses.hinge_loss, {}),
        "ipo": (losses.ipo_loss, {}),
        "exo": (losses.exo_loss, smoothed),
        "apo_zero": (losses.apo_zero_loss, {}),
        "apo_down": (losses.apo_down_loss, {}),
        "cpo": (losses.sigmoid_loss, {}),
        "simpo": (losses.simpo_loss, {"gamma": config.gamma}),
        "orpo": (losses.orpo_loss, {}),
    }
    function, options = table[config.loss]
    return partial(function, beta=config.beta, **options)


def read_pairs(rows: Sequence[Any], what: str) -> list[Pair]:
    """Return the pairs that can be learned from.

    Raises:
        DataError: the rows are no pairs, or none can be learned from.
    """
    for row in rows:
        if not isinstance(row, Pair):
            raise DataError(
                f"{what}: the pipeline returned {type(row).__name__} objects; this loss learns from pairs: leave "
                "data.sample_pipeline out, or set trainer.loss=kto to learn from labelled answers"
            )
    return usable_pairs(rows, what)


class PairObjective:
    """The losses of pairs.

    Args:
        config: the trainer's options, resolved.
        policy: the policy.
        reference: the reference.
    """

    group = 2
    stack = staticmethod(stack_pairs)

    def __init__(self, config: DPOConfig, policy: Policy, reference: Reference) -> None:
        self.config, self.policy, self.reference = config, policy, reference
        self.pair_loss = pair_loss(config)
        self.takes_means = config.loss in ("simpo", "orpo") or (config.loss == "ipo" and config.average == "mean")

    def loss_of(self, batch: Trajectories) -> Callable[[Trajectories], tuple[Tensor, dict[str, Tensor]]]:
        """Return the loss function of the parts of a batch, the pairs of an optimizer step on all ranks."""
        # The updater divides by the number of pairs; the likelihood is a mean over tokens.
        tokens = self._imitated(batch)[::2].sum()
        return partial(self.loss, sft_weight=float(self.config.sft_coef or 0) * (len(batch) // 2) / tokens.clamp(min=1))

    def loss(self, part: Trajectories, *, sft_weight: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each pair, float[P], and its metrics.

        Args:
            part: 2 P rows, chosen and rejected answers in turn.
            sft_weight: factor of the negative log-likelihood of each chosen answer.
        """
        config = self.config
        is_full = config.nll == "full" and bool(config.sft_coef)
        logprobs = self.policy.score(with_prompts(part) if is_full else part).logprobs
        sums = summed(logprobs, part.action_mask)
        ratios = sums - self.reference.logprobs(part) if self.reference.is_used else sums
        scores = ratios / part.num_actions.clamp(min=1) if self.takes_means else ratios
        chosen, rejected = scores[::2], scores[1::2]
        preference = self.pair_loss(chosen, rejected)
        total, metrics = preference, {}
        if config.sft_coef:
            likelihood = (summed(logprobs, with_prompts(part).action_mask) if is_full else sums)[::2]
            total = preference - sft_weight * likelihood
            metrics = {"loss/preference": preference, "loss/sft": total - preference}
        beta, won = float(config.beta or 0), chosen - rejected > self._rounding(part, sums)
        return total, {
            "loss/total": total, **metrics, "rewards/chosen": beta * chosen, "rewards/rejected": beta * rejected,
            "rewards/accuracies": won.float(), "rewards/margins": beta * (chosen - rejected),
            "logps/chosen": sums[::2], "logps/rejected": sums[1::2],
        }  # fmt: skip

    def _rounding(self, part: Trajectories, sums: Tensor) -> Tensor:
        """Return up to which difference two scores are equal: float[P]. Equal answers are no wins."""
        sizes = sums.detach().abs() + 1
        sizes = ROUNDING * (sizes / part.num_actions.clamp(min=1) if self.takes_means else sizes)
        return sizes[::2] + sizes[1::2]

    def _imitated(self, batch: Trajectories) -> Tensor:
        return (with_prompts(batch) if self.config.nll == "full" else batch).num_actions


def with_prompts(batch: Trajectories) -> Trajectories:
    """Return the same sequences with every token chosen but the first."""
    return attrs.evolve(batch, action_mask=batch.mask & (batch.mask.cumsum(1) > 1))
