"""Online DPO's loop: sample answers, rank those to each prompt, learn from the best and the worst, yield."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from rlcore.errors import ConfigError, Diverged
from rlcore.protocols import Policy
from rlcore.training import Order, Round, Run, by_block, disable_dropout
from rlcore.types import Metrics, Prompt, State, Trajectories
from rlcore_dpo.config import DPOConfig, compares_with_reference
from rlcore_dpo.loss import best_and_worst
from rlcore_dpo.online_config import OnlineDPOConfig, pair_options, workload
from rlcore_dpo.pair_objective import PairObjective
from rlcore_dpo.reference import summed


class OnlineReference:
    """The reference's log-probs of sampled answers, computed in every step.

    Args:
        config: the options of the losses, resolved.
        run: the run, which has built its policy.
        policy: that policy.
    """

    def __init__(self, config: DPOConfig, run: Run, policy: Policy) -> None:
        self.is_used, self._policy, self._temperature = compares_with_reference(config), policy, run.temperature
        named = config.ref_model if self.is_used else None
        self._other = None if named is None else run.models.frozen(named)

    @torch.no_grad()
    def logprobs(self, part: Trajectories) -> Tensor:
        """Return the reference's log-prob of each answer: float[B]."""
        score = self._policy.reference_score if self._other is None else self._other.score
        with by_block(self._policy) if self._other is None else nullcontext():
            return summed(score(part, temperature=self._temperature).logprobs, part.action_mask)


class OnlineDPOTrainer:
    """Online DPO (`rlcore.protocols.Trainer`): the losses of the trainer `dpo` on the policy's own answers.

    A round samples G answers to each of P prompts. The answer with the highest score is y_c, the one with the lowest
    y_r; a prompt whose scores are equal, or of which fewer than two answers have a score, gives no pair. One optimizer
    step minimises the mean over the pairs of f(c, r), as described in the package's docstring. Log-probs are those of
    logits / gen.temperature, of the policy and of the reference. Guo et al. 2024, arXiv:2402.04792.
    """

    needs = ("reward_fn", "prompts")
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}
    headline = (
        "eval/reward/mean",
        "reward/mean",
        "rewards/accuracies",
        "rewards/margins",
        "pairs/fraction",
        "response/length_mean",
    )
    workload = staticmethod(workload)

    def __init__(self, config: OnlineDPOConfig, run: Run) -> None:
        if config.batch_size < run.ranks.world:
            raise ConfigError(
                f"trainer.batch_size = {config.batch_size}: must be at least the number of processes, "
                f"{run.ranks.world}, each of which samples answers to one prompt or more"
            )
        self.config, self.run = config, run
        options = pair_options(config)
        if not run.config.gen.temperature:
            raise ConfigError(
                "gen.temperature = 0: all answers to a prompt would be equal, and give no pair; set it above 0"
            )
        self._policy = run.build(reference=compares_with_reference(options) and options.ref_model is None)
        disable_dropout(self._policy.module)
        self._policy.module.train()
        reference = OnlineReference(options, run, self._policy)
        self.objective = PairObjective(options, self._policy, reference, temperature=run.temperature)
        self.order = run.data.order(run.prompts)
        self.store = run.make_store()
        run.plan_steps(len(run.prompts) / config.batch_size)
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

    def upcoming(self, steps: int) -> list[tuple[list[Prompt], int]]:
        """Return the next calls of `run.rollout`, for `run.asynchronous`; the losses hold for answers of any policy."""
        order = copy.copy(self.order)
        return [(self._take(order), self.config.num_generations) for _ in range(steps)]

    def rollout(self) -> Metrics:
        """Sample and score a round, and put it in the store."""
        batch = self.run.rollout(self._take(self.order), group=self.config.num_generations)
        batch = batch.with_only("scores", "has_score")
        self.store.append(batch.own)
        self.run.observers.on_rollout(self.run, batch.own)
        return batch.metrics

    def update(self, rows: Trajectories) -> Metrics:
        """Make one optimizer step on the pairs of a round, of its rows, or none if there are none."""
        config, meter, size, batch = (
            self.config,
            self.updater.meter(),
            self.config.num_generations,
            self.run.round(rows),
        )
        self._check(batch)
        paired = best_and_worst(
            batch["scores"].view(-1, size), batch["has_score"].view(-1, size), min_margin=config.min_margin
        )
        metrics = {"pairs/fraction": len(paired) * size / (2 * len(batch))}
        if not len(paired):
            self.updater.skip()
            self.run.warn_once(
                "online_dpo", "an optimizer step is left out: no prompt has two answers with different scores"
            )
            return metrics
        pairs = batch.rows(paired)
        scores = pairs["scores"].double()
        metrics["pairs/score_margin"] = float((scores[::2] - scores[1::2]).mean())
        pairs = pairs.with_only()
        self.updater.accumulate(
            pairs, self.objective.loss_of(pairs), meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens,
            group=2,
        )  # fmt: skip
        self.updater.step(meter)
        return metrics | meter.means()

    def _check(self, batch: Round) -> None:
        """Check that every score is a number, before anything is learned from it.

        Raises:
            Diverged: a score is not finite.
        """
        broken = (batch["has_score"] & ~batch["scores"].isfinite()).nonzero()[:, 0].tolist()
        if broken:
            raise Diverged(
                f"step {self.run.step + 1}: the score of answer {broken[0]} of the round is "
                f"{float(batch['scores'][broken[0]])}, by which nothing can be ranked; return finite numbers, or None "
                "for an answer without a score"
            )

    def _take(self, order: Order) -> list[Prompt]:
        """Return the prompts of the next round."""
        return [self.run.prompts[index] for index in order.take(self.config.batch_size)]

    def state_dict(self) -> State:
        """Return the optimizer and the order of prompts."""
        return {"updater": self.updater.state_dict(), "order": self.order.state_dict()}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
