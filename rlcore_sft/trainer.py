"""The loop of supervised fine-tuning: one optimizer step, one yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch

from rlcore.data.order import Order
from rlcore.data.samples import stack_samples
from rlcore.models.dropout import eval_mode
from rlcore.models.loading import disable_dropout
from rlcore.optim.batches import micro_batches
from rlcore.optim.meter import Meter
from rlcore.protocols import Policy
from rlcore.training.run import Run
from rlcore.types import Metrics
from rlcore_sft.config import SFTConfig, workload
from rlcore_sft.loss import nll


class SFTTrainer:
    """Supervised fine-tuning (`rlcore.protocols.Trainer`); the loss is on chosen tokens only, EOS among them."""

    needs = ("samples",)
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    workload = staticmethod(workload)

    def __init__(self, config: SFTConfig, run: Run) -> None:
        self.config, self.run = config, run
        self._policy = run.build_policy()
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.order = Order(len(run.samples), run.config.run.seed)
        run.plan_steps(-(-len(run.samples) // config.batch_size))
        self.updater = run.updater(self._policy, config.optimizer)
        if run.eval_samples:
            run.add_evaluation(self.validation_loss)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        while True:
            dealt = self.order.take_within_pass(self.config.batch_size)
            batch = stack_samples([self.run.samples[i] for i in dealt]).to(self.run.ranks.device)
            total = batch.num_actions.sum()
            meter = Meter(self.run.ranks)
            parts = micro_batches(
                batch, self.config.micro_batch_size, self.run.ranks, tokens=self.config.micro_batch_tokens
            )
            for part, last in parts:
                # The reduction: a sum over chosen tokens, divided by their number in the whole batch on all ranks.
                with self.updater.exchanging(last):
                    losses = nll(self._policy.score(part).logprobs)
                    self.updater.backward(losses.sum() / total)
                meter.add(part.action_mask, {"loss/total": losses.detach()})
            norm = self.updater.step()
            metrics = meter.means() | ({} if norm is None else {"grad/norm": float(norm)})
            yield metrics | {"data/tokens": float(total), "lr": self.updater.lr, "progress/epoch": self.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    @torch.no_grad()
    def validation_loss(self) -> Metrics:
        """Return the mean negative log-likelihood of the held-out chosen tokens, on all ranks together."""
        samples, size = self.run.eval_samples, self.config.batch_size
        meter = Meter(self.run.ranks)
        with eval_mode(self._policy.module):
            for start in range(0, len(samples), size):
                batch = stack_samples(samples[start : start + size]).to(self.run.ranks.device)
                parts = micro_batches(
                    batch, self.config.micro_batch_size, self.run.ranks, tokens=self.config.micro_batch_tokens
                )
                for part, _ in parts:
                    meter.add(part.action_mask, {"loss": nll(self._policy.score(part).logprobs)})
        return meter.means()

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer and the order of samples."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
