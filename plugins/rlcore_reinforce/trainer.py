"""The trainer of REINFORCE: each round samples responses and makes one optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.protocols import Policy
from rlcore.training import Run, disable_dropout, warn_of_bias
from rlcore.types import Metrics, State, Trajectories
from rlcore_reinforce.config import ReinforceConfig
from rlcore_reinforce.loss import leave_one_out, policy_loss


class ReinforceTrainer:
    """REINFORCE with a baseline (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("reward_fn", "prompts")
    headline = ("eval/reward/mean", "reward/mean")
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}

    @staticmethod
    def workload(config: object, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG004  (as of every trainer)
        """Return no more for `rlcore plan` than the options say."""
        return {}

    def __init__(self, config: ReinforceConfig, run: Run) -> None:
        if config.rollouts < run.ranks.world:
            raise ConfigError(
                f"trainer.rollouts = {config.rollouts}: must be at least the number of processes, {run.ranks.world}"
            )
        warn_of_bias(run)
        self.config, self.run = config, run
        self._policy = run.build()
        disable_dropout(self._policy.module)
        self._policy.module.train()
        self.order = run.data.order(run.prompts)
        self.store = run.make_store()
        run.plan_steps(len(run.prompts) / config.rollouts)
        self.updater = run.updater(self._policy, config.optimizer)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each round and its optimizer step."""
        while True:
            metrics = self.rollout()
            metrics |= self.update(self.store.take())
            yield metrics | {"lr": self.updater.lr, "progress/epoch": self.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def rollout(self) -> Metrics:
        """Sample and score a round, and put it in the store with its advantages."""
        prompts = [self.run.prompts[index] for index in self.order.take(self.config.rollouts)]
        batch = self.run.rollout(prompts, at_least=2)
        batch = batch.with_columns(advantages=leave_one_out(batch["scores"]))
        self.store.append(batch.own)
        self.run.observers.on_rollout(self.run, batch.own)
        return batch.metrics

    def update(self, rows: Trajectories) -> Metrics:
        """Make the optimizer step of a round, of its rows."""
        config, meter, batch = self.config, self.updater.meter(), self.run.round(rows)
        self.updater.accumulate(batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens)
        self.updater.step(meter)
        return meter.means()

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        outputs = self._policy.score(part, temperature=self.run.temperature)
        losses = policy_loss(outputs.logprobs, part["advantages"])
        return losses, {"loss/policy": losses}

    def state_dict(self) -> State:
        """Return the optimizer and the order of prompts."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
