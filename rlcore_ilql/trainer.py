"""ILQL's loop: one optimizer step on rewarded samples, and every so many a sync of the target Q-functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from rlcore import ops
from rlcore.data.order import Order
from rlcore.data.samples import stack_samples
from rlcore.models.dropout import eval_mode
from rlcore.models.loading import disable_dropout
from rlcore.optim.batches import micro_batches
from rlcore.optim.meter import Meter
from rlcore.protocols import Policy, QPolicy
from rlcore.training.run import Run
from rlcore.types import Metrics, Trajectories
from rlcore_ilql.config import ILQLConfig, workload
from rlcore_ilql.loss import awac_loss, cql_loss, lowest, q_loss, value_loss
from rlcore_ilql.returns import read_returns


class ILQLTrainer:
    """Implicit language Q-learning (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("samples", "rewards")
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    workload = staticmethod(workload)

    def __init__(self, config: ILQLConfig, run: Run) -> None:
        self.config, self.run = config, run
        self._policy = cast("QPolicy", run.build_policy(value_head=True, q_heads=config.num_q_heads))
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.returns = read_returns(run.sample_rewards, run.samples, standardise=config.standardise_rewards)
        self.order = Order(len(run.samples), run.config.run.seed)
        run.plan_steps(-(-len(run.samples) // config.batch_size))
        self.updater = run.updater(self._policy, config.optimizer)
        if run.eval_samples:
            run.add_evaluation(self.validation_losses)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step, and the sync of the targets where one is due."""
        while True:
            dealt = self.order.take_within_pass(self.config.batch_size)
            batch = stack_samples([self.run.samples[i] for i in dealt]).to(self.run.ranks.device)
            flat = [reward for i in dealt for reward in self._chosen_rewards(i)]
            rewards = torch.tensor(flat, dtype=torch.float32, device=batch.tokens.device)
            batch = batch.with_columns(rewards=ops.spread(rewards, batch.action_mask))
            metrics = self._learn(batch) | {"returns/mean": self.returns.mean, "returns/std": self.returns.std}
            yield metrics | {"lr": self.updater.lr, "progress/epoch": self.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def _learn(self, batch: Trajectories) -> Metrics:
        """Make one optimizer step; bring the targets nearer to Q where it is the `sync_every`-th."""
        config, updater, meter = self.config, self.updater, Meter(self.run.ranks)
        total = batch.num_actions.sum()
        parts = micro_batches(batch, config.micro_batch_size, self.run.ranks, tokens=config.micro_batch_tokens)
        for part, last in parts:
            with updater.exchanging(last):
                terms, seen = self._terms(part)
                loss = terms["q"] + terms["v"] + config.cql_coef * terms["cql"] + config.awac_coef * terms["awac"]
                # The reduction: a sum over chosen tokens, divided by their number in the whole batch on all ranks.
                updater.backward(ops.masked_sum(loss, part.action_mask) / total)
            measured = {"loss/total": loss} | {f"loss/{name}": term for name, term in terms.items()} | seen
            meter.add(part.action_mask, {name: each.detach() for name, each in measured.items()})
        done = updater.num_updates
        norm = updater.step()
        if updater.num_updates > done and updater.num_updates % config.sync_every == 0:
            self._policy.sync_targets(config.target_rate)
        metrics = meter.means() | ({} if norm is None else {"grad/norm": float(norm)})
        return metrics | {"q/syncs": float(updater.num_updates // config.sync_every), "data/tokens": float(total)}

    def _terms(self, part: Trajectories) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the terms of the loss at each token, that of Q only where there are rewards, and what else is seen."""
        config, said = self.config, self._policy.score(part)
        q, q_logprobs, target_q, values = said.q_values, said.q_logprobs, said.target_q_values, said.values
        assert q is not None  # noqa: S101  for the type checker: the policy was built with Q-heads
        assert q_logprobs is not None  # noqa: S101  the same
        assert target_q is not None  # noqa: S101  the same
        assert values is not None  # noqa: S101  the same: with a value head
        terms = {
            "v": value_loss(values, target_q, tau=config.tau),
            "cql": cql_loss(q_logprobs),
            "awac": awac_loss(said.logprobs, values, target_q, beta=config.awac_beta),
        }
        if "rewards" in part:
            terms["q"] = q_loss(q, values, part["rewards"], part.action_mask, gamma=config.gamma)
        return terms, {"q/mean": q.mean(0), "value/mean": values, "advantage/mean": lowest(target_q) - values}

    @torch.no_grad()
    def validation_losses(self) -> Metrics:
        """Return the terms of the loss that need no rewards, and the means of Q and V, over the held-out samples."""
        samples, size = self.run.eval_samples, self.config.batch_size
        meter = Meter(self.run.ranks)
        with eval_mode(self._policy.module):
            for start in range(0, len(samples), size):
                batch = stack_samples(samples[start : start + size]).to(self.run.ranks.device)
                parts = micro_batches(
                    batch, self.config.micro_batch_size, self.run.ranks, tokens=self.config.micro_batch_tokens
                )
                for part, _ in parts:
                    terms, seen = self._terms(part)
                    meter.add(part.action_mask, {f"loss/{name}": term for name, term in terms.items()} | seen)
        return meter.means()

    def _chosen_rewards(self, i: int) -> list[float]:
        marked = zip(self.returns.rewards[i], self.run.samples[i].action_mask, strict=True)
        return [reward for reward, chosen in marked if chosen]

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer, whose count of steps tells when the targets are due, and the order of samples."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
