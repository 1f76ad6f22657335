"""Update a policy: backward passes of micro-batches, clipping, one optimizer step, the learning-rate schedule."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from transformers import get_scheduler

from rlcore.errors import ConfigError
from rlcore.protocols import Policy
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig


class Updater:
    """Own the optimizer and the schedule of one policy.

    `lr` is the learning rate of the last step, `num_updates` and `num_skipped` count the steps taken and thrown away.

    A loss given to `backward` must already be a *sum over tokens divided by their number in the whole batch, on all
    ranks*; then neither micro-batches nor ranks change the gradient.
    """

    def __init__(self, policy: Policy, config: OptimizerConfig, ranks: Ranks, *, total_updates: int | None) -> None:
        if config.scheduler != "constant" and total_updates is None:
            raise ConfigError(
                f"trainer.optimizer.scheduler = {config.scheduler!r}: needs to know the last step: set run.steps "
                "(a budget in time alone does not tell it)"
            )
        self.config, self.ranks, self.num_updates, self.num_skipped = config, ranks, 0, 0
        self.lr = 0.0
        policy.to(ranks.device)
        self.parameters = [p for p in policy.module.parameters() if p.requires_grad]
        if not self.parameters:
            raise ConfigError("nothing trains: every parameter is frozen; raise model.unfrozen_layers")
        matrices = [p for p in self.parameters if p.dim() > 1]
        vectors = [p for p in self.parameters if p.dim() <= 1]
        groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay, fused=True,
        )  # fmt: skip
        name = "constant_with_warmup" if config.scheduler == "constant" else config.scheduler
        self.scheduler = get_scheduler(
            name, optimizer, num_warmup_steps=config.warmup_steps, num_training_steps=total_updates
        )
        self.wrapped, self.optimizer = ranks.accelerator.prepare(policy.module, optimizer)
        policy.forward = self.wrapped

    def backward(self, loss: Tensor, *, last: bool = True) -> None:
        """Add the gradient of one micro-batch's loss; ranks exchange theirs with the `last` one only."""
        quiet = contextlib.nullcontext() if last else self.ranks.accelerator.no_sync(self.wrapped)
        with quiet:
            # Wrapped modules average over ranks; the loss is a share of one global sum.
            self.ranks.accelerator.backward(loss * self.ranks.world if self.ranks.world > 1 else loss)

    def step(self) -> Tensor | None:
        """Clip, step, advance the schedule and clear the gradients; return the norm before clipping, if it clips."""
        norm: Tensor | None = None
        if self.config.max_grad_norm:
            norm = self.ranks.accelerator.clip_grad_norm_(self.parameters, self.config.max_grad_norm)
        self.lr = float(self.scheduler.get_last_lr()[0])
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.num_updates += 1
        return norm

    def skip(self) -> None:
        """Throw the gradients away instead of stepping."""
        self.optimizer.zero_grad()
        self.num_skipped += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the moments, the schedule's place and the counts."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "num_updates": self.num_updates,
            "num_skipped": self.num_skipped,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go back to where `state_dict` was taken."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.num_updates, self.num_skipped = state["num_updates"], state["num_skipped"]
