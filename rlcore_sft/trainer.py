"""The loop of supervised fine-tuning: one optimizer step, one yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

from torch import Tensor

from rlcore.protocols import Policy
from rlcore.training import Run, disable_dropout, stack_samples, validate
from rlcore.types import Metrics, State, Trajectories
from rlcore_sft.config import SFTConfig
from rlcore_sft.loss import nll


class SFTTrainer:
    """Supervised fine-tuning (`rlcore.protocols.Trainer`); the loss is on chosen tokens only, EOS among them."""

    needs = ("samples",)
    default_for = ("samples",)
    headline = ("eval/loss", "loss/total")
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}

    @staticmethod
    def workload(config: object, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG004  (as of every trainer)
        """Return no more for `rlcore plan` than the options say."""
        return {}

    def __init__(self, config: SFTConfig, run: Run) -> None:
        self.config, self.run = config, run
        self._policy = run.build()
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.samples, self.order = run.data.ordered_samples()
        run.plan_steps(self.order.num_batches(config.batch_size))
        self.updater = run.updater(self._policy, config.optimizer)
        if run.data.eval_samples:
            run.add_evaluation(self.validation_loss)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            indices, meter = self.order.take_within_pass(config.batch_size), self.updater.meter()
            batch = stack_samples([self.samples[i] for i in indices]).to(self.updater.device)
            count = self.updater.accumulate(
                batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            self.updater.step(meter)
            yield meter.means() | {
                "data/tokens": float(count), "lr": self.updater.lr, "progress/epoch": self.order.epoch,
            }  # fmt: skip

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        losses = nll(self._policy.score(part).logprobs)
        return losses, {"loss/total": losses}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def validation_loss(self) -> Metrics:
        """Return the mean negative log-likelihood of the held-out chosen tokens, on all ranks together."""
        config, run = self.config, self.run
        return validate(
            self._policy, run.data.eval_samples, lambda part: {"loss": self.loss(part)[0]}, run.ranks,
            batch_size=config.batch_size, size=config.micro_batch_size, tokens=config.micro_batch_tokens,
        )  # fmt: skip

    def state_dict(self) -> State:
        """Return the optimizer and the order of samples."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
