"""GRPO's loop: sample groups of responses, compare the responses of each, learn from them, yield.

Also in this file: a reference that follows the policy from time to time (TR-DPO, Gorbatovski et al. 2024,
arXiv:2404.09656).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rlcore import ops
from rlcore.errors import ConfigError, ModelError
from rlcore.protocols import MovingReference, Policy
from rlcore.training import Meter, Round, Run, check_logprob_gap, disable_dropout, warn_of_bias, weight_metrics
from rlcore.types import Metrics, Prompt, State, Trajectories, grouped
from rlcore_grpo.config import GRPOConfig, workload
from rlcore_grpo.constraints import check
from rlcore_grpo.loss import (
    cispo_loss,
    clipped_loss,
    off_policy,
    ratios,
    sapo_loss,
    token_weights,
    uncertain,
    vespo_loss,
    vespo_weights,
)
from rlcore_grpo.rounds import Rounds


class ReferenceSync:
    """Moves the reference every `sync_ref_every` optimizer steps; if that is 0, it stays where it is.

    reference <- alpha policy + (1 - alpha) reference.

    Args:
        config: the options.
        policy: the policy, with its reference.

    Raises:
        ConfigError: the reference cannot move.
    """

    def __init__(self, config: GRPOConfig, policy: Policy) -> None:
        self.every, self.alpha, self._is_used = config.sync_ref_every, config.sync_ref_alpha, config.kl_coef > 0
        self._built = policy
        self._policy = _with_copy(policy, self.every) if self.every else None

    def after(self, num_updates: int, *, before: int) -> None:
        """Move the reference, if a multiple of `every` lies above `before` and at most at `num_updates`."""
        if self._policy is not None and self.every and num_updates // self.every > before // self.every:
            self._policy.move_reference(self.alpha)

    def state_dict(self) -> State:
        """Return the weights of the reference, unless it has never moved and never does."""
        return {} if self._policy is None else self._policy.reference_state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned; a reference that has stayed until now is the one that is built.

        Raises:
            ConfigError: the reference has moved, and the present one cannot.
        """
        if state and self._is_used:
            self._policy = self._policy or _with_copy(self._built, self.every)
            self._policy.load_reference_state_dict(state)


def _with_copy(policy: Policy, every: int) -> MovingReference:
    reason = "policies of this architecture have a reference that stays"
    if isinstance(policy, MovingReference):
        try:
            policy.reference_state_dict()
        except ModelError as error:
            reason = str(error)
        else:
            return policy
    raise ConfigError(f"trainer.sync_ref_every = {every}: {reason}; leave it out")


TRAINED, SUFFIX = "tokens/trained_fraction", "_trained"
"""The share of tokens that have a gradient, and the end of the names of metrics that are means over these."""
OF_THE_SAMPLER = ("is/logprob_gap", "is/kl")
"""Metrics of the sampler's log-probs, which are those of the policy before the first optimizer step only."""


class GRPOTrainer:
    """Group-relative policy optimisation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("reward_fn", "prompts")
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}
    headline = (
        "eval/reward/mean",
        "reward/mean",
        "kl/mean",
        "policy/entropy",
        "response/length_mean",
        "group/zero_spread_fraction",
    )
    workload = staticmethod(workload)

    def __init__(self, config: GRPOConfig, run: Run) -> None:
        self.config, self.run, self.num_rounds = config, run, 0
        check(config, run.ranks.world)
        warn_of_bias(run)
        self._policy = run.build(reference=config.kl_coef > 0)
        self.reference_sync = ReferenceSync(config, self._policy)
        disable_dropout(self._policy.module)
        self._policy.module.train()
        self.store = run.make_store()
        self.rounds = Rounds(config, run, self._policy)
        run.plan_steps(len(run.prompts) / self.rounds.num_prompts)
        self.updater = run.updater(
            self._policy, config.optimizer, updates_per_step=config.iterations * config.minibatches
        )

    def steps(self) -> Iterator[Metrics]:
        """Yield after each round, when everything it sampled has been learned from."""
        while True:
            metrics = self.rollout()
            metrics |= self.update(self.store.take())
            self.num_rounds += 1
            yield metrics | {"progress/epoch": self.rounds.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def upcoming(self, steps: int) -> list[tuple[list[Prompt], int]]:
        """Return the next calls of `run.rollout`, for `run.asynchronous`; `is_correction` weighs what is older."""
        return self.rounds.upcoming(steps)

    def rollout(self) -> Metrics:
        """Sample a round, and put it in the store with its advantages."""
        batch, metrics = self.rounds.sample()
        self.store.append(batch.own)
        self.run.observers.on_rollout(self.run, batch.own)
        if self.config.credit == "turn":
            advantages = batch.learning(batch["counts"]).chosen(batch.own["advantages"])
        else:
            advantages = batch["advantages"][batch["counts"]]
        if len(advantages):
            metrics |= {
                "advantage/mean": float(advantages.mean()), "advantage/std": float(advantages.std(correction=0)),
            }  # fmt: skip
        return metrics

    def update(self, rows: Trajectories) -> Metrics:
        """Learn from the rows of a round: `iterations` passes over it, each in `minibatches` optimizer steps."""
        config, begun, meter, gaps = self.config, time.perf_counter(), self.updater.meter(), self.updater.meter()
        skipped, size, tokens = self.updater.num_skipped, config.num_generations, torch.zeros(2, dtype=torch.long)
        batch = self.run.round(rows)
        batch = batch.learning(batch["counts"])
        per_step = -(-len(batch) // size // config.minibatches) * size
        for iteration in range(config.iterations if len(batch) else 0):
            seed = (self.run.config.run.seed * 1_000_003 + self.num_rounds) * 101 + iteration
            for minibatch in batch.minibatches(per_step, seed=seed, group=size):
                tokens += self._learn(minibatch, meter, gaps if gaps.is_empty else None)
        return (
            self._gap(gaps)
            | _over_all(meter.means(), *tokens.tolist(), zeros=_left_out_is_zero(config))
            | weight_metrics(batch)
            | {
                "policy/skipped": float(self.updater.num_skipped - skipped),
                "lr": self.updater.lr,
                "time/update_s": time.perf_counter() - begun,
            }
        )

    def _gap(self, gaps: Meter) -> Metrics:
        """Return the mean distance between the log-probs of sampler and trainer, and warn if it is too large."""
        metrics = gaps.means()
        if metrics:
            check_logprob_gap(self.run, metrics["is/logprob_gap"])
        return metrics

    def _learn(self, minibatch: Round, meter: Meter, gaps: Meter | None) -> Tensor:
        """Make one optimizer step, or none if no response teaches anything.

        Returns:
            long[2], the number of tokens that are trained on, and of all that count.

        Args:
            minibatch: whole groups.
            meter: adds up the metrics.
            gaps: if given, adds up the distance between the log-probs of the sampler and those of the policy.
        """
        config, size, lengths = self.config, self.config.num_generations, minibatch.num_actions
        weights, divisor = token_weights(lengths, norm=config.norm, max_new_tokens=self.rounds.longest)
        minibatch = minibatch.with_columns(weights=weights[:, 0])
        if config.top_entropy < 1 and divisor:
            entropy = minibatch.own["entropy"]
            lowest = uncertain(minibatch.chosen(entropy), share=config.top_entropy)
            minibatch = minibatch.with_columns(learns=entropy >= lowest)
        minibatch = self._with_gradient(minibatch)
        tokens = torch.stack([minibatch.num_actions.sum(), lengths.sum()]).cpu()
        if not tokens[0]:
            self.updater.skip()
            self.run.warn_once(
                "grpo", "an optimizer step is left out: no response has an advantage and a token that counts"
            )
            return tokens

        def loss(part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
            losses, metrics = self.loss(part)
            found = {name: metrics.pop(name) for name in OF_THE_SAMPLER if name in metrics}
            if gaps is not None and found:
                gaps.add(part.action_mask, found)
            return losses, metrics

        bound = config.micro_batch_size
        together = size if not bound or bound >= size else 1  # a prompt is read once for all that continue it
        self.updater.accumulate(
            minibatch, loss, meter, size=bound, tokens=config.micro_batch_tokens, group=together, count=divisor
        )
        before = self.updater.num_updates
        self.updater.step(meter)
        self.reference_sync.after(self.updater.num_updates, before=before)
        return tokens

    def _with_gradient(self, minibatch: Round) -> Round:
        """Leave out groups whose advantages are all 0, unless the KL or entropy term has a gradient there.

        Their tokens still count in what the loss is divided by, so that the gradient is the same.
        """
        config = self.config
        if (config.kl_coef and config.kl_in == "loss") or config.entropy_coef:
            return minibatch
        if config.credit == "turn":
            teaches = minibatch.all(((minibatch.own["advantages"] != 0) & minibatch.own.action_mask).any(1))
        else:
            teaches = (minibatch["advantages"] != 0) & (minibatch.num_actions > 0)
        teaches = teaches.view(-1, config.num_generations)
        return minibatch.rows(grouped(teaches.any(1).nonzero()[:, 0], config.num_generations))

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, weighted as `norm` says, and its metrics."""
        config, mask, advantages = self.config, part.action_mask, _by_token(part)
        outputs = self._policy.score(part, entropy=config.entropy_coef > 0, temperature=self.run.temperature)
        logprobs = outputs.logprobs
        old = part["old_logprobs"] if "old_logprobs" in part else logprobs.detach()
        ratio = ratios(logprobs, old, mask, level=config.level)
        vespo = self._vespo(part, logprobs, old) if config.surrogate == "vespo" else None
        policy = self._surrogate(ratio, logprobs, advantages, vespo)
        if "is_weights" in part and vespo is None:
            policy = policy * part["is_weights"]
        learns, metrics = self._learns(part, logprobs, advantages, vespo)
        policy = policy.where(learns, 0.0)
        metrics |= {"loss/policy": policy, **self._metrics(ratio, logprobs, old, advantages, learns)}
        loss = policy
        if vespo is not None:
            metrics["policy/vespo_weight_trained"] = vespo.expand_as(logprobs)
        if "sampler_logprobs" in part:
            own, sampled = logprobs.detach(), part["sampler_logprobs"]
            metrics["is/logprob_gap"] = (own - sampled).abs()
            metrics["is/kl"] = ops.kl_estimate(sampled, own, estimator="k3")
        if "ref_logprobs" in part and config.kl_in == "loss":
            kl = self._kl(part, logprobs, old)
            loss, metrics["loss/kl"] = loss + config.kl_coef * kl, kl
        if config.entropy_coef:
            entropy = outputs.need("entropy")
            loss, metrics["loss/entropy"] = loss - config.entropy_coef * entropy, entropy
        if not {"sampler_logprobs", "old_logprobs"} & set(part.columns):
            metrics["policy/entropy_trained"] = -logprobs
        trained = (learns if loss is policy else mask).float()
        for name in [name for name in metrics if name.endswith(SUFFIX)]:
            metrics[name] = metrics[name].detach() * trained
        return loss * part["weights"][:, None], {TRAINED: trained, **metrics}

    def _learns(
        self, part: Trajectories, logprobs: Tensor, advantages: Tensor, vespo: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the tokens whose policy loss has a gradient before it is clipped, and a metric of what has none."""
        weights, metrics = part.columns.get("is_weights") if vespo is None else vespo, dict[str, Tensor]()
        learns = part.columns.get("learns", part.action_mask) & (advantages != 0)
        if weights is not None:
            learns = learns & (weights != 0)
        if (threshold := self.config.off_policy_mask) is not None:
            sampled = part["sampler_logprobs"]
            gone = off_policy(logprobs.detach(), sampled, part.action_mask, advantages, threshold=threshold)
            learns, metrics["policy/off_policy_fraction"] = learns & ~gone, gone.expand_as(learns).float()
        return learns, metrics

    def _vespo(self, part: Trajectories, logprobs: Tensor, old: Tensor) -> Tensor:
        """Return the weight of each response under `surrogate: vespo`, into which those of `is_correction` go."""
        config = self.config
        return vespo_weights(
            logprobs, old, part.action_mask, _by_token(part), positive=(config.vespo_k, config.vespo_lambda),
            negative=(config.vespo_k_negative, config.vespo_lambda_negative),
            corrections=part.columns.get("is_weights"),
        )  # fmt: skip

    def _surrogate(self, ratio: Tensor, logprobs: Tensor, advantages: Tensor, vespo: Tensor | None) -> Tensor:
        config = self.config
        if vespo is not None:
            return vespo_loss(vespo, logprobs, advantages)
        if config.surrogate == "cispo":
            return cispo_loss(ratio, logprobs, advantages, cap=config.cispo_cap)
        if config.surrogate == "sapo":
            return sapo_loss(ratio, advantages, positive=config.sapo_tau, negative=config.sapo_tau_negative)
        return clipped_loss(ratio, advantages, low=config.clip_low, high=config.clip_high, dual_clip=config.dual_clip)

    def _kl(self, part: Trajectories, logprobs: Tensor, old: Tensor) -> Tensor:
        """Return the KL to the reference at each token, with gradients."""
        reference = part["ref_logprobs"].where(part.action_mask, logprobs.detach())
        kl = ops.kl_estimate(logprobs, reference, estimator=self.config.kl_estimator)
        return kl * ratios(logprobs, old, part.action_mask) if self.config.kl_ratio else kl

    @torch.no_grad()
    def _metrics(
        self, ratio: Tensor, logprobs: Tensor, old: Tensor, advantages: Tensor, learns: Tensor
    ) -> dict[str, Tensor]:
        config = self.config
        metrics = {
            "policy/approx_kl_trained": ops.kl_estimate(old, logprobs, estimator="k3"),
            "policy/ratio_mean_trained": ratio,
        }
        if config.surrogate == "clip":
            metrics["policy/clip_low_fraction"] = ((ratio < 1 - config.clip_low) & (advantages < 0) & learns).float()
            metrics["policy/clip_high_fraction"] = ((ratio > 1 + config.clip_high) & (advantages > 0) & learns).float()
        if config.dual_clip is not None:
            metrics["policy/dual_clip_fraction"] = ((ratio > config.dual_clip) & (advantages < 0) & learns).float()
        return metrics

    def state_dict(self) -> State:
        """Return the optimizer, the order of prompts, the round's number, and a reference that moves."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.rounds.order.state_dict(),
            "num_rounds": self.num_rounds,
            "reference": self.reference_sync.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.rounds.order.load_state_dict(state["order"])
        self.num_rounds = state["num_rounds"]
        self.reference_sync.load_state_dict(state["reference"])


def _by_token(batch: Trajectories) -> Tensor:
    """Return the advantages in a form that broadcasts over tokens: float[B, 1], or float[B, T] of turns."""
    advantages = batch["advantages"]
    return advantages if advantages.dim() == 2 else advantages[:, None]


def _left_out_is_zero(config: GRPOConfig) -> list[str]:
    """Return the metrics that are 0 at the tokens of a group without advantages, which is left out of the pass."""
    is_made = {
        "loss/policy": True,
        "policy/clip_low_fraction": config.surrogate == "clip",
        "policy/clip_high_fraction": config.surrogate == "clip",
        "policy/dual_clip_fraction": config.dual_clip is not None,
        "policy/off_policy_fraction": config.off_policy_mask is not None,
        TRAINED: True,
    }
    return [name for name, applies in is_made.items() if applies]


def _over_all(means: Metrics, num_passed: int, num_counted: int, *, zeros: Sequence[str]) -> Metrics:
    """Return the metrics of an update: means over all tokens that count, or over those that have a gradient.

    Args:
        means: means over the tokens of the forward passes; those of `SUFFIX` are 0 at tokens without gradient.
        num_passed: so many tokens were in the forward passes of the optimizer steps of a round.
        num_counted: so many tokens count in the losses of these steps.
        zeros: metrics that are 0 at all other tokens.
    """
    share = num_passed / num_counted if num_counted else 0.0
    trained = means.get(TRAINED, 0.0)
    of_trained = {name: mean / trained for name, mean in means.items() if name.endswith(SUFFIX) and trained}
    others = {name: mean for name, mean in means.items() if not name.endswith(SUFFIX)}
    return {**others, **of_trained, **{name: means.get(name, 0.0) * share for name in zeros}}
