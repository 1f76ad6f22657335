"""The loop of reward training: one optimizer step, one yield."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.protocols import SequenceScorer
from rlcore.training import (
    Meter,
    Run,
    by_block,
    disable_dropout,
    eval_mode,
    micro_batches,
)
from rlcore.types import Metrics, State, Trajectories
from rlcore_reward.config import RewardConfig, workload
from rlcore_reward.loss import pair_loss
from rlcore_transformers.data.mixtures import indices_by_source
from rlcore_transformers.preferences.preferences import Pair, stack_pairs, usable_pairs


class RewardTrainer:
    """Training of a reward model (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("samples",)
    sample_pipeline = "preferences"
    architecture = "sequence_scorer"
    lowers = "loss/total"
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    headline = ("eval/reward/accuracy", "reward/accuracy", "loss/total", "reward/margin")
    workload = staticmethod(workload)

    def __init__(self, config: RewardConfig, run: Run) -> None:
        self.config, self.run = config, run
        self.scorer = run.build("scorer")
        if not config.dropout:
            disable_dropout(self.scorer.module)
        self.scorer.module.train()
        self.pairs = usable(run.samples, config, "samples")
        self.eval_pairs = usable(run.data.eval_samples, config, "eval_samples") if run.data.eval_samples else []
        self.order = run.data.order(self.pairs, of=run.samples)
        run.plan_steps(-(-len(self.pairs) // config.batch_size))
        self.updater = run.updater(self.scorer, config.optimizer)
        if self.eval_pairs:
            run.add_evaluation(self.validate)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            indices = self.order.take_within_pass(config.batch_size)
            batch = stack_pairs([self.pairs[i] for i in indices]).to(self.updater.device)
            meter, extremes = self.updater.meter(), Extremes()

            def loss(part: Trajectories, extremes: Extremes = extremes) -> tuple[Tensor, dict[str, Tensor]]:
                losses, metrics, scores = self.measure(part)
                extremes.add(scores, part)
                return losses, metrics

            self.updater.accumulate(
                batch, loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens, group=2
            )
            self.updater.step(meter)
            yield _finished(meter.means()) | extremes.over(self.run) | {
                "data/pairs": float(len(indices)), "lr": self.updater.lr, "progress/epoch": self.order.epoch,
            }  # fmt: skip

    def measure(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        """Return the loss of each pair, float[P], its metrics, and all scores, float[2 P].

        Accuracy and margin are zero for ties; `is_choice`, whose mean they are divided by, counts the other pairs.
        """
        config, scores = self.config, self.scorer.score(part)
        chosen, rejected = scores.view(-1, 2).unbind(1)
        ties = part["ties"][::2] if "ties" in part else None
        losses = pair_loss(
            chosen, rejected, margins=part["margins"][::2] if "margins" in part else None, ties=ties,
            tie_ratio=config.tie_ratio if config.ties == "learn" else 1.0, center_coef=config.center_coef,
        )  # fmt: skip
        with torch.no_grad():
            choice = torch.ones_like(chosen) if ties is None else (~ties).to(chosen.dtype)
            metrics = {
                "loss/total": losses,
                "reward/accuracy": (chosen > rejected) * choice,
                "reward/margin": (chosen - rejected) * choice,
                "reward/chosen": chosen * choice,
                "reward/rejected": rejected * choice,
                "is_choice": choice,
                "reward/mean": (chosen + rejected) / 2,
                "square": (chosen.square() + rejected.square()) / 2,
            }
        return losses, metrics, scores.detach()

    @torch.no_grad()
    def validate(self) -> Metrics:
        """Return the metrics of the held-out pairs, and those of each source of a mixture, on all ranks together.

        Each pair has the same weight.
        """
        whole, every = self.updater.meter(), Extremes()
        found = Metrics()
        for source, rows in indices_by_source(self.eval_pairs, of=self.run.data.eval_samples).items():
            meter, extremes = self._measured([self.eval_pairs[i] for i in rows])
            whole.merge(meter)
            every.merge(extremes)
            own = _finished(meter.means()) | extremes.over(self.run) if source else {}
            found |= {f"{name.removesuffix('/total')}/{source}": value for name, value in own.items()}
        means = _finished(whole.means()) | every.over(self.run) | {"data/held_out": float(len(self.eval_pairs))}
        return {name.removesuffix("/total"): value for name, value in means.items()} | found

    def _measured(self, pairs: Sequence[Pair]) -> tuple[Meter, Extremes]:
        """Return the sums of the metrics over held-out pairs, and the extremes of their scores."""
        config, meter, extremes = self.config, self.updater.meter(), Extremes()
        with eval_mode(self.scorer.module), by_block(self.scorer):
            for start in range(0, len(pairs), config.batch_size):
                batch = stack_pairs(pairs[start : start + config.batch_size]).to(self.updater.device)
                parts = micro_batches(
                    batch, config.micro_batch_size, self.run.ranks, tokens=config.micro_batch_tokens, group=2
                )
                for part, _ in parts:
                    _, metrics, scores = self.measure(part)
                    meter.add(_real(part)[::2], metrics)
                    extremes.add(scores, part)
        return meter, extremes

    def policy(self) -> SequenceScorer:
        """Return the scorer."""
        return self.scorer

    def state_dict(self) -> State:
        """Return the optimizer and the order of pairs."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])


def usable(pairs: Sequence[Pair], config: RewardConfig, what: str) -> list[Pair]:
    """Return the pairs that can be learned from; a warning counts the others.

    Raises:
        DataError: the rows are no pairs, or none is left.
    """
    if pairs and not isinstance(pairs[0], Pair):
        raise DataError(
            f"{what}: data.sample_pipeline returned rows of {type(pairs[0]).__name__}; the trainer 'reward' needs "
            "pairs of a preferred and another answer: leave data.sample_pipeline out, or set it to preferences"
        )
    kept = usable_pairs(pairs, what, whole=True)
    limit, before = config.max_length, len(kept)
    counts = {}
    if limit:
        kept = [pair for pair in kept if max(len(pair.chosen.tokens), len(pair.rejected.tokens)) <= limit]
        counts["longer_than_max_length"] = before - len(kept)
    if config.ties == "drop":
        before = len(kept)
        kept = [pair for pair in kept if not pair.is_tie]
        counts["ties"] = before - len(kept)
    dropped = {name: count for name, count in counts.items() if count}
    if not kept:
        listed = ", ".join(f"{name.replace('_', ' ')}: {count}" for name, count in dropped.items())
        raise DataError(f"{what}: no pair is left ({listed}); raise trainer.max_length, or set trainer.ties=learn")
    if dropped:
        get_logger("reward").warning(f"{what}: pairs are left out", kept=len(kept), **dropped)
    return kept


class Extremes:
    """The lowest and the highest score of the sequences of a step."""

    def __init__(self) -> None:
        self._seen: list[Tensor] = []

    def add(self, scores: Tensor, part: Trajectories) -> None:
        """Add the scores of a micro-batch, float[B]; stand-ins for a missing share do not count."""
        self._seen.append(scores[_real(part)])

    def merge(self, other: Extremes) -> None:
        """Add everything that another object has seen."""
        self._seen += other._seen

    def over(self, run: Run) -> Metrics:
        """Return `reward/min` and `reward/max` over all ranks."""
        mine = torch.cat(self._seen)
        extremes = run.ranks.gather([float(mine.min()), float(mine.max())] if len(mine) else [])
        return {"reward/min": min(extremes), "reward/max": max(extremes)}


def _real(part: Trajectories) -> Tensor:
    """Return bool[2 P], True for both rows of a pair that is no stand-in."""
    return (part.num_actions > 0).view(-1, 2).any(1).repeat_interleave(2)


def _finished(means: dict[str, float]) -> Metrics:
    """Turn the means over all pairs into those over pairs with a choice, and the mean square into a deviation."""
    share, square = means.pop("is_choice"), means.pop("square")
    for name in ("reward/accuracy", "reward/margin", "reward/chosen", "reward/rejected"):
        if share:
            means[name] /= share
        else:
            del means[name]
    return means | {"reward/std": max(square - means["reward/mean"] ** 2, 0.0) ** 0.5}
