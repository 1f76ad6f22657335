"""ILQL's loop: one optimizer step on samples with rewards, one yield; a sync of the target Q-heads when due.

Also in this file: standardised returns: the scale of rewards no longer depends on the user's units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import Run, disable_dropout, stack_samples, validate
from rlcore.types import Metrics, Sample, SampleReward, State, Trajectories
from rlcore_ilql.config import ILQLConfig, q_heads, workload
from rlcore_ilql.loss import awac_loss, cql_loss, lowest, q_loss, value_loss
from rlcore_ilql.q_heads import sync_targets

ROUNDING = 1e-12
"""Returns that differ by less than this share of the largest count as equal: they differ by rounding only."""


@attrs.frozen
class Returns:
    """Hold the rewards of a data set as they are learned from, and the statistics of the original returns.

    Attributes:
        rewards: for each sample one number for each of its tokens.
        mean: mean of the samples' undiscounted returns, as given.
        std: their unbiased standard deviation; 0 if they differ by rounding only.
    """

    rewards: list[tuple[float, ...]]
    mean: float
    std: float


def read_returns(given: Sequence[SampleReward], samples: Sequence[Sample], *, standardise: bool) -> Returns:
    """Measure the returns of a data set and, if requested, standardise them: (R - mean R) / std R, on the last token.

    If any sample has dense rewards, all are divided by std R and none is centred: the mean would have to be subtracted
    from some token, which would assign reward to it.
    """
    totals = torch.tensor([each.total for each in given], dtype=torch.float64)
    differ = float(totals.max() - totals.min()) > ROUNDING * float(totals.abs().max())
    mean, std = float(totals.mean()), float(totals.std()) if differ else 0.0
    rewards = [each.tokens for each in given]
    if standardise and not differ:
        get_logger("ilql").warning(
            "all returns are equal, so there is no scale to bring them to: they stay as they are, and no sample is "
            "better than another",
            returns=mean, samples=len(given),
        )  # fmt: skip
    elif standardise:
        centre = 0.0 if any(each.dense for each in given) else mean
        rewards = [_scaled(each.tokens, sample, centre, std) for each, sample in zip(given, samples, strict=True)]
    return Returns(rewards, mean, std)


def _scaled(rewards: Sequence[float], sample: Sample, centre: float, std: float) -> tuple[float, ...]:
    last = max(t for t, chosen in enumerate(sample.action_mask) if chosen)
    return tuple((reward - centre * (t == last)) / std for t, reward in enumerate(rewards))


class ILQLTrainer:
    """Implicit language Q-learning (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("samples", "rewards")
    default_for = ("samples", "rewards")
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    default_beta = 16.0  # of Wordle in the published code of Snell et al. 2022, arXiv:2206.11871
    headline = ("eval/reward/mean", "loss/total", "loss/q", "loss/v", "loss/cql", "loss/awac")
    workload = staticmethod(workload)

    def __init__(self, config: ILQLConfig, run: Run) -> None:
        self.config, self.run = config, run
        self._policy: Policy = run.build(value_head=True, heads=q_heads(config.num_q_heads))
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.returns = read_returns(run.data.sample_rewards, run.samples, standardise=config.standardise_rewards)
        self.order = run.data.order(run.samples)
        run.plan_steps(-(-len(run.samples) // config.batch_size))
        self.updater = run.updater(self._policy, config.optimizer)
        if run.data.eval_samples:
            run.add_evaluation(self.validation_losses)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step, and after the sync of the target Q-heads when one is due."""
        config, updater = self.config, self.updater
        while True:
            indices, meter = self.order.take_within_pass(config.batch_size), self.updater.meter()
            batch = stack_samples([self.run.samples[i] for i in indices]).to(self.updater.device)
            flat = [reward for i in indices for reward in self._chosen_rewards(i)]
            rewards = torch.tensor(flat, dtype=torch.float32, device=batch.tokens.device)
            batch = batch.with_columns(rewards=ops.spread(rewards, batch.action_mask))
            count = updater.accumulate(
                batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            num_before = updater.num_updates
            updater.step(meter)
            num_updates = updater.num_updates  # not one more where fp16 skipped the step
            if num_updates > num_before and num_updates % config.sync_every == 0:
                sync_targets(self._policy, config.target_rate)
            yield meter.means() | {
                "q/syncs": float(num_updates // config.sync_every), "data/tokens": float(count),
                "returns/mean": self.returns.mean, "returns/std": self.returns.std,
                "lr": updater.lr, "progress/epoch": self.order.epoch,
            }  # fmt: skip

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        terms, config = self.terms(part), self.config
        loss = terms["loss/q"] + terms["loss/v"]
        loss = loss + config.cql_coef * terms["loss/cql"] + config.awac_coef * terms["loss/awac"]
        return loss, {"loss/total": loss} | terms

    def terms(self, part: Trajectories) -> dict[str, Tensor]:
        """Return the terms of the loss and the estimates at each token; without rewards there is no Q loss."""
        config, outputs = self.config, self._policy.score(part)
        q, target_q, values = outputs.need("q_values"), outputs.need("target_q_values"), outputs.need("values")
        terms = {
            "loss/v": value_loss(values, target_q, tau=config.tau),
            "loss/cql": cql_loss(outputs.need("q_logprobs")),
            "loss/awac": awac_loss(outputs.logprobs, values, target_q, beta=config.awac_beta),
            "q/mean": q.mean(0),
            "value/mean": values,
            "advantage/mean": lowest(target_q) - values,
        }
        if "rewards" in part:
            terms["loss/q"] = q_loss(q, values, part["rewards"], part.action_mask, gamma=config.gamma)
        return terms

    def validation_losses(self) -> Metrics:
        """Return the terms of the loss that need no rewards, and the means of Q and V, over the held-out samples."""
        config, run = self.config, self.run
        return validate(
            self._policy, run.data.eval_samples, self.terms, run.ranks,
            batch_size=config.batch_size, size=config.micro_batch_size, tokens=config.micro_batch_tokens,
        )  # fmt: skip

    def _chosen_rewards(self, i: int) -> list[float]:
        marked = zip(self.returns.rewards[i], self.run.samples[i].action_mask, strict=True)
        return [reward for reward, chosen in marked if chosen]

    def state_dict(self) -> State:
        """Return the optimizer, whose count of steps determines the next sync, and the order of samples."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
