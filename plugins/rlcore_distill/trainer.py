"""The loop of distillation: rows of demonstrations, of the policy or the teacher; one optimizer step, one yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from rlcore import ops
from rlcore.protocols import Policy
from rlcore.training import Meter, Run, disable_dropout, validate
from rlcore.types import Metrics, Trajectories
from rlcore_distill.config import DistillConfig, PromptDistillConfig, check, workload
from rlcore_distill.loss import divergence, nll
from rlcore_distill.rows import PromptRows, Rows, SampleRows
from rlcore_distill.teachers import ModelTeacher, Teacher, build_teacher, needs_reference


class DistillTrainer:
    """Generalised knowledge distillation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)
    off_policy, scores_samples = True, True
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    headline = ("eval/loss/total", "loss/total", "distill/agreement")
    lowers = "loss/total"
    workload = staticmethod(workload)

    def __init__(self, config: DistillConfig, run: Run) -> None:
        check(config)
        self.config, self.run = config, run
        self.temperature = config.temperature or run.temperature
        self._policy = run.build(reference=needs_reference(config))
        disable_dropout(self._policy.module)
        self._policy.module.train()
        self.teacher: Teacher = build_teacher(config, run, self._policy, temperature=self.temperature)
        self.rows = self.make_rows(config, run)
        run.plan_steps(self.rows.num_batches())
        self.updater = run.updater(self._policy, config.optimizer)
        if run.data.eval_samples:
            run.add_evaluation(self.validation)

    def make_rows(self, config: Any, run: Run) -> Rows:
        """Return the source of rows: demonstrations, and the policy's outputs to their prompts."""
        return SampleRows(config, run)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            (batch, metrics), meter = self.rows.next(), Meter(self.run.ranks)
            count = self.updater.accumulate(
                batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            self.updater.step(meter)
            yield metrics | meter.means() | {
                "data/tokens": float(count), "lr": self.updater.lr, "progress/epoch": self.rows.order.epoch,
            }  # fmt: skip

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        config, mask = self.config, part.action_mask
        outputs = self._policy.score(part, logits=config.divergence != "nll", temperature=self.temperature)
        if config.divergence == "nll":
            losses = nll(outputs.logprobs)
            return losses, {"loss/total": losses}
        found = self.teacher.compare(part, outputs.need("logits"), temperature=self.temperature)
        each = divergence(found.logprobs, found.teacher_logprobs, kind=config.divergence, beta=config.beta)
        losses = ops.spread(each, mask)
        metrics = {"loss/total": losses, "distill/agreement": ops.spread(found.agrees.to(losses.dtype), mask)}
        if config.server.url:
            metrics["distill/teacher_mass"] = ops.spread(found.mass.to(losses.dtype), mask)
        return losses, metrics

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    @torch.no_grad()
    def validation(self) -> Metrics:
        """Return the means of loss and agreement over the tokens of held-out demonstrations, on all ranks together."""
        config, run = self.config, self.run
        return validate(
            self._policy, run.data.eval_samples, lambda part: self.loss(part)[1], run.ranks,
            batch_size=config.batch_size, size=config.micro_batch_size, tokens=config.micro_batch_tokens,
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer, the order of the rows, and how many have been taken."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.rows.order.state_dict(),
            "num_rows": self.rows.shares.num_rows,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.rows.order.load_state_dict(state["order"])
        self.rows.shares.num_rows = state["num_rows"]


class PromptDistillTrainer(DistillTrainer):
    """Distillation on prompts alone: the policy, or the teacher, samples the outputs."""

    needs: ClassVar[tuple[str, ...]] = ("prompts",)
    scores_samples = False

    def make_rows(self, config: PromptDistillConfig, run: Run) -> Rows:
        """Return the source of rows: outputs of the policy and of the teacher."""
        return PromptRows(config, run, self.teacher.model if isinstance(self.teacher, ModelTeacher) else None)
