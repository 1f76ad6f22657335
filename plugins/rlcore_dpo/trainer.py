"""The loop of DPO: one optimizer step over pairs, or over answers with a verdict, one yield."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import Meter, Order, Run, by_block, disable_dropout, eval_mode, micro_batches
from rlcore.types import Metrics, State, Trajectories
from rlcore_dpo.config import DPOConfig, resolve, sample_pipeline, workload
from rlcore_dpo.pair_objective import (
    KTOObjective,
    PairObjective,
    is_usable_pair,
    mean_tokens,
    read_labelled,
    read_pairs,
)
from rlcore_dpo.reference import Reference, is_built_with_reference
from rlcore_transformers.data.mixtures import indices_by_source


class DPOTrainer:
    """Direct preference optimisation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("samples",)
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    headline = ("eval/rewards/accuracies", "rewards/accuracies", "loss/total", "rewards/margins", "kl/")
    lowers = "loss/total"
    sample_pipeline = staticmethod(sample_pipeline)
    workload = staticmethod(workload)

    def __init__(self, config: DPOConfig, run: Run) -> None:
        self.config, self.run = resolve(config, is_streamed=run.data.sample_stream is not None), run
        self._policy = run.build(reference=is_built_with_reference(self.config, run))
        if config.nll == "full" and self._policy.outputs_begin_text:
            raise ConfigError(
                "trainer.nll = 'full': the prompts of an encoder-decoder are its input and have no likelihood; use "
                "nll: answer"
            )
        if not config.dropout:
            disable_dropout(self._policy.module)
        self._policy.module.train()
        self.rows, self.order = run.data.ordered_samples(self._read, is_usable=is_usable_pair)
        self.held_out = self._read(run.data.eval_samples, "eval_samples") if run.data.eval_samples else []
        self.reference = Reference(self.config, run, self._policy, (self.rows, self.held_out))
        self.objective: PairObjective | KTOObjective
        if config.loss == "kto":
            self.objective = KTOObjective(self.config, self._policy, self.reference, run)
        else:
            num_tokens = None if run.data.sample_stream is not None else mean_tokens(self.rows)
            self.objective = PairObjective(self.config, self._policy, self.reference, num_tokens=num_tokens)
            betas = {term.name: term.beta for term in self.objective.terms}
            get_logger("dpo").info("beta of each loss", **betas, tokens=num_tokens and round(num_tokens, 1))
        run.plan_steps(self.order.num_batches(config.batch_size))
        self.updater = run.updater(self._policy, config.optimizer)
        if self.held_out:
            run.add_evaluation(self.validation)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            meter, batch = self.updater.meter(), self.batch(self._next(), table=0)
            self.updater.accumulate(
                batch, self.objective.loss_of(batch), meter, size=config.micro_batch_size,
                tokens=config.micro_batch_tokens, group=self.objective.group,
            )  # fmt: skip
            self.updater.step(meter)
            yield meter.means() | {"lr": self.updater.lr, "progress/epoch": self.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def batch(self, indices: Sequence[int], *, table: int) -> Trajectories:
        """Return the batch of rows, those that are trained on (`table` 0) or held out (1), on this rank's device."""
        rows = (self.rows, self.held_out)[table]
        batch = self.objective.stack([rows[i] for i in indices]).to(self.updater.device)
        return self.reference.attach(batch, table, indices)

    @torch.no_grad()
    def validation(self) -> Metrics:
        """Return the means of the metrics over held-out rows, and over those of each source of a mixture.

        All ranks measure together. Answers of `kto` are compared with others of their batch, of any source for the
        means over all rows, and otherwise of their own; of a source with one answer there are no means.
        """
        sources = indices_by_source(self.held_out, of=self.run.data.eval_samples)
        is_kto = self.config.loss == "kto"
        meters = {name: self._measured(rows) for name, rows in sources.items() if not (is_kto and len(rows) == 1)}
        whole = self.updater.meter()
        if is_kto and len(sources) > 1:
            whole = self._measured(range(len(self.held_out)))
        else:
            for meter in meters.values():
                whole.merge(meter)
        means = whole.means() | {"data/held_out": float(len(self.held_out))}
        for source in filter(None, meters):
            means |= {f"{name}/{source}": value for name, value in meters[source].means().items()}
        return means

    def _measured(self, rows: Sequence[int]) -> Meter:
        """Return the sums of the metrics over some of the held-out rows."""
        config, ranks, count = self.config, self.run.ranks, len(rows)
        meter, group = Meter(ranks), self.objective.group
        starts = [*range(0, count, config.batch_size)]
        if config.loss == "kto" and count - starts[-1] == 1:
            starts.pop()  # a single answer has none to be compared with: it joins the batch before
        with eval_mode(self._policy.module):
            for start, end in itertools.pairwise([*starts, count]):
                batch = self.batch(rows[start:end], table=1)
                measure = self.objective.loss_of(batch)
                parts = micro_batches(
                    batch, config.micro_batch_size, ranks, tokens=config.micro_batch_tokens, group=group
                )
                with by_block(self._policy):
                    for part, _ in parts:
                        meter.add((part.num_actions > 0).view(-1, group).any(1), measure(part)[1])
        return meter

    def _read(self, rows: Sequence[object], what: str) -> Sequence[Any]:
        return read_labelled(rows, what, self.config) if self.config.loss == "kto" else read_pairs(rows, what)

    def _next(self) -> list[int]:
        """Return the rows of the next step. The last step of a pass may be smaller, except for kto, which needs two."""
        if isinstance(self.order, Order) and self.config.loss == "kto":
            return self.order.take(min(self.config.batch_size, len(self.rows)))
        return self.order.take_within_pass(self.config.batch_size)

    def state_dict(self) -> State:
        """Return the optimizer, the order of the rows and the reference's log-probs."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.order.state_dict(),
            "reference": self.reference.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.reference.load_state_dict(state["reference"])
