"""PPO's loop: sample and score a round, estimate advantages, learn from it for a few epochs, yield.

Also in this file: from scores to rewards: clipping, scaling, the KL penalty, and the two small states that adapt.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Literal

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.training import (
    Meter,
    Order,
    Round,
    Run,
    by_block,
    disable_dropout,
    rollout_health,
    warn_of_bias,
    weight_metrics,
)
from rlcore.types import Metrics, Prompt, State, Trajectories
from rlcore_ppo.config import PPOConfig, check, workload
from rlcore_ppo.loss import policy_loss, value_clipped, value_loss


@attrs.define
class KLCoefficient:
    """Hold the weight of the KL penalty, and adapt it to a target KL if one is set.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), once per round of n responses.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """

    value: float
    target: float | None
    horizon: int
    initial: float = attrs.field(init=False, default=attrs.Factory(lambda self: self.value, takes_self=True))

    def update(self, kl: float, num_responses: int) -> None:
        """Adapt the weight to a round whose mean KL per response was `kl` nats."""
        if self.target is not None:
            error = min(max(kl / self.target - 1.0, -0.2), 0.2)
            self.value *= 1.0 + error * num_responses / self.horizon

    def state_dict(self) -> State:
        """Return the weight and its initial value."""
        return {"value": self.value, "initial": self.initial}

    def load_state_dict(self, state: State) -> None:
        """Restore a weight that has adapted, unless the configuration has another initial value now."""
        if self.target is not None and state["initial"] == self.initial:
            self.value = state["value"]


@attrs.define
class ScoreScale:
    """Divide scores by a standard deviation: of all seen so far, of the first round, or by 1.

    The deviation is unbiased, accumulated by the parallel form of Welford's method (Chan et al. 1979), and includes the
    round it is applied to; scores are not centred. With fewer than two scores, or all equal, they are left as they are.
    """

    mode: Literal["none", "running", "first"]
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def divisor(self, scores: Tensor) -> float:
        """Add a round's scores, float[B], and return the divisor of them."""
        if self.mode == "none":
            return 1.0
        if self.mode == "running" or not self.count:
            self._add(scores.double())
        deviation = (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0
        return deviation if deviation > 0 else 1.0

    def _add(self, scores: Tensor) -> None:
        count, mean = len(scores), float(scores.mean())
        squares, difference = float(((scores - mean) ** 2).sum()), mean - self.mean
        total = self.count + count
        self.squares += squares + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count = total

    def state_dict(self) -> State:
        """Return the moments."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: State) -> None:
        """Restore the moments that `state_dict` returned."""
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]


def token_scores(
    totals: Tensor, dense: Tensor | None, batch: Trajectories, *, low: float | None, high: float | None, penalty: float
) -> Tensor:
    """Turn scores into rewards per token: each at the last chosen token, EOS included, or token by token where dense.

    Args:
        totals: float[B], the score of each response; ignored where `dense` is given.
        dense: float[B, T] or None.
        batch: B responses; `penalty` is subtracted from the score of truncated ones before the bounds apply.
        low: lower bound of a score (of each dense reward), None for none.
        high: upper bound.
        penalty: for a truncated response.

    Returns:
        float[B, T], zero where no token was chosen.
    """
    penalties = penalty * (~batch.ended).to(totals.dtype)
    if dense is None:
        return ops.place_last(bound(totals - penalties, low, high), batch.action_mask)
    return bound(dense - ops.place_last(penalties, batch.action_mask), low, high).masked_fill(~batch.action_mask, 0.0)


def bound(scores: Tensor, low: float | None, high: float | None) -> Tensor:
    """Clamp scores to the bounds that are given."""
    return scores if low is None and high is None else torch.clamp(scores, low, high)


RATIO_TOLERANCE, LOW_PRECISION_TOLERANCE = 1e-2, 5e-2
"""Distance of the ratios from 1 on the first minibatch of a round above which there is a warning: the largest in full
precision, the mean in low precision. There a batch of another shape is rounded otherwise, and single tokens move far:
in bf16, micro-batches of 3 instead of 12 answers of SmolLM2-135M gave .07 at most and .0005 on average. Dropout of .01
gave .14 on average."""
TRAINING_COLUMNS = ("old_logprobs", "values", "advantages", "returns")


def cut_inside_a_turn(rows: Trajectories, eos_token_ids: Sequence[int]) -> Tensor:
    """Return where a limit cut a sequence inside a turn of the policy: bool[B].

    Such a sequence has not ended, its last token is chosen, and this token is not an EOS. An episode that was cut off
    between two turns ends with an EOS, or with what the environment said.
    """
    ends = torch.tensor(list(eos_token_ids), dtype=torch.long, device=rows.tokens.device)
    last = (rows.mask * torch.arange(rows.mask.shape[1], device=rows.mask.device)).argmax(1, keepdim=True)
    chosen, tokens = rows.action_mask.gather(1, last)[:, 0], rows.tokens.gather(1, last)[:, 0]
    return ~rows.ended & chosen & ~torch.isin(tokens, ends)


class PPOTrainer:
    """Proximal policy optimisation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs = ("reward_fn", "prompts")
    default_for = ("reward_fn",)
    default_budget: ClassVar[Mapping[str, float]] = {"steps": 100}
    headline = ("eval/reward/mean", "reward/mean", "kl/mean", "loss/policy", "loss/value", "response/length_mean")
    workload = staticmethod(workload)

    def __init__(self, config: PPOConfig, run: Run) -> None:
        self.config, self.run, self.num_rounds = config, run, 0
        check(config, run.ranks.world)
        warn_of_bias(run)
        self.penalised = config.kl_coef > 0
        gen, draws = run.config.gen, run.sampling.traits.draws_from_policy
        if config.is_correction != "off" and (gen.top_k or gen.top_p < 1 or not draws):
            raise ConfigError(
                f"trainer.is_correction = {config.is_correction!r}: options such as gen.top_k, gen.top_p and "
                "sampler.min_p change the distribution that tokens are sampled from, so that the ratio of policy and "
                "sampler weighs nothing; leave them out, or set it to off"
            )
        self._policy = run.build(value_head=True, reference=self.penalised)
        disable_dropout(self._policy.module)
        self._policy.module.train()
        self.order = run.data.order(run.prompts)
        self.store = run.make_store()
        run.plan_steps(len(run.prompts) / config.rollouts)
        self.updates_per_round = config.epochs * -(-config.rollouts // config.batch_size)
        self.updater = run.updater(self._policy, config.optimizer, updates_per_step=self.updates_per_round)
        self.kl = KLCoefficient(config.kl_coef, config.kl_target, config.kl_horizon)
        self.scale = ScoreScale(config.score_scaling)
        self.eos_token_ids = self._policy.eos_token_ids if gen.eos_token_ids is None else gen.eos_token_ids

    def steps(self) -> Iterator[Metrics]:
        """Yield after each round, when everything it sampled has been learned from."""
        while True:
            metrics = self.rollout()
            metrics |= self.update(self.store.take())
            self.num_rounds += 1
            yield metrics | {"progress/epoch": self.order.epoch}

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    def rollout(self) -> Metrics:
        """Sample and score a round, and put it in the store with its rewards, advantages and returns."""
        run, begun = self.run, time.perf_counter()
        batch = self._scored(run.rollout(self._take(self.order)))
        health = rollout_health(run, batch)
        if "sampler_logprobs" in batch:
            kl = ops.kl_estimate(batch.own["sampler_logprobs"], batch.own["logprobs"], estimator="k3")
            health["is/kl"] = batch.mean(kl)
        batch, metrics = self._shaped(batch)
        batch = batch.rename(logprobs="old_logprobs")
        self.store.append(batch.own)
        run.observers.on_rollout(run, batch.own)
        score_s = time.perf_counter() - begun - batch.metrics["time/sample_s"]
        return metrics | health | batch.metrics | {"time/score_s": score_s}

    def upcoming(self, steps: int) -> list[tuple[list[Prompt], int]]:
        """Return the next calls of `run.rollout`, for `run.asynchronous`; `is_correction` weighs what is older."""
        order = copy.copy(self.order)
        return [(self._take(order), 1) for _ in range(steps)]

    def _take(self, order: Order) -> list[Prompt]:
        """Return the prompts of the next round."""
        return [self.run.prompts[index] for index in order.take(self.config.rollouts)]

    @torch.no_grad()
    def _scored(self, batch: Round) -> Round:
        """Add the log-probs, values and KL of each token as it was chosen."""
        run, size, tokens = self.run, self.config.micro_batch_size, self.config.micro_batch_tokens
        size = size if size or tokens else self.config.batch_size
        is_known = run.sampling.is_exact and "logprobs" in batch and "values" in batch
        with by_block(self._policy):
            if not is_known:  # else the sampler's log-probs and values equal the trainer's
                batch = batch.map(self._rescored, size=size, tokens=tokens)
            if self.penalised or self.config.bootstrap_truncated:
                batch = batch.map(self._compared, size=size, tokens=tokens)
        return batch

    def _rescored(self, batch: Trajectories) -> Trajectories:
        """Replace log-probs and values by the trainer's own, and keep the sampler's."""
        if "logprobs" in batch:
            batch = batch.rename(logprobs="sampler_logprobs")
        outputs, config = self._policy.score(batch, temperature=self.run.temperature), self.config
        if config.is_correction != "off":
            if "sampler_logprobs" not in batch:
                raise ConfigError(f"trainer.is_correction = {config.is_correction!r}: the sampler returns no log-probs")
            weights = ops.correction(
                outputs.logprobs, batch["sampler_logprobs"], batch.action_mask, kind=config.is_correction,
                low=config.is_low, high=config.is_high,
            )  # fmt: skip
            batch = batch.with_columns(is_weights=weights)
        return batch.with_columns(logprobs=outputs.logprobs, values=outputs.need("values"))

    def _compared(self, batch: Trajectories) -> Trajectories:
        """Add the KL to the reference at each token, and the value after a truncated response, if they are used."""
        if self.penalised:
            full = self.config.kl_estimator == "full"
            temperature = self.run.temperature
            reference = self._policy.reference_score(batch, logits=full, temperature=temperature)
            if reference.logits is not None:
                logits = self._policy.score(batch, logits=True, temperature=temperature).need("logits")
                kl = ops.spread(ops.full_kl(logits, reference.logits), batch.action_mask)
            else:
                kl = ops.kl_estimate(batch["logprobs"], reference.logprobs, estimator=self.config.kl_estimator)
            batch = batch.with_columns(kl=kl, ref_logprobs=reference.logprobs)
        if self.config.bootstrap_truncated:
            batch = batch.with_columns(bootstrap=self._value_after_truncation(batch))
        return batch

    def _value_after_truncation(self, batch: Trajectories) -> Tensor:
        """Return V of the whole sequence where it was truncated, zero where it ended: float[B]."""
        extended = batch.extended()
        values = self._policy.score(extended).need("values")
        last = ops.place_last(torch.ones_like(values[:, 0]), extended.action_mask)
        return (values * last).sum(1) * ~batch.ended

    def _shaped(self, batch: Round) -> tuple[Round, Metrics]:
        """Add rewards, advantages and returns to a round."""
        config, rows = self.config, batch.own
        chosen = rows.action_mask
        rewards = token_scores(
            rows["scores"], rows.columns.get("dense"), rows,
            low=config.score_min, high=config.score_max, penalty=config.missing_eos_penalty,
        )  # fmt: skip
        rewards = rewards / self.scale.divisor(batch.all(rewards.sum(1)))
        # Of tokens sampled from the policy, -log pi is an unbiased estimate of the entropy.
        metrics = {"policy/entropy": -batch.mean(rows["logprobs"])}
        metrics |= weight_metrics(batch)
        if self.penalised:
            kl = batch.mean(rows["kl"]) * float(batch.num_actions.sum()) / len(batch)
            metrics |= {"kl/mean": kl, "kl/coef": self.kl.value}
            rewards = rewards - self.kl.value * rows["kl"].masked_fill(~chosen, 0.0)
            self.kl.update(kl, len(batch))
        bootstrap = rows.columns.get("bootstrap")
        is_cut = None if bootstrap is None else cut_inside_a_turn(rows, self.eos_token_ids)
        advantages = ops.gae(
            rewards, rows["values"], chosen, gamma=config.gamma, lam=config.lam, turn_gamma=config.turn_gamma,
            turn_lam=config.turn_lam, bootstrap=bootstrap, is_cut=is_cut,
        )  # fmt: skip
        returns = advantages + rows["values"]
        metrics |= _explained(batch, returns, rows["values"])
        if config.whiten_advantages:
            advantages = batch.whiten(advantages, min_std=config.min_advantage_std)
        return batch.with_columns(rewards=rewards, advantages=advantages, returns=returns), metrics

    def update(self, rows: Trajectories) -> Metrics:
        """Learn from the rows of a round: `epochs` passes of minibatches, fewer if the KL to the old policy grows."""
        config, begun, meter = self.config, time.perf_counter(), self.updater.meter()
        skipped = self.updater.num_skipped
        columns = (*TRAINING_COLUMNS, *({"is_weights"} & set(rows.columns)))
        batch = self.run.round(rows).with_only(*columns)
        for epoch in range(config.epochs):
            seed = (self.run.config.run.seed * 1_000_003 + self.num_rounds) * 101 + epoch
            passed = self.updater.meter()
            for i, minibatch in enumerate(batch.minibatches(config.batch_size, seed=seed)):
                passed.merge(self._learn(minibatch, check_ratio=epoch == i == 0))
            meter.merge(passed)
            if config.target_kl is not None and not passed.means()["policy/approx_kl"] <= 1.5 * config.target_kl:
                break  # also where it is NaN
        metrics = meter.means() | {
            "policy/epochs": epoch + 1.0,
            "policy/skipped": float(self.updater.num_skipped - skipped),
        }
        metrics["loss/total"] = metrics["loss/policy"] + config.value_coef * metrics["loss/value"]
        if config.entropy_coef:
            metrics["loss/total"] -= config.entropy_coef * metrics["loss/entropy"]
        return metrics | {"lr": self.updater.lr, "time/update_s": time.perf_counter() - begun}

    def _learn(self, minibatch: Round, *, check_ratio: bool) -> Meter:
        """Make one optimizer step, or skip it if the mean ratio is out of bounds; return its metrics."""
        config, meter, errors = self.config, self.updater.meter(), list[Tensor]()

        def loss(part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
            losses, metrics = self.loss(part)
            if check_ratio:
                errors.append((metrics["policy/ratio_mean"] - 1).abs()[part.action_mask])
            return losses, metrics

        self.updater.accumulate(minibatch, loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens)
        if check_ratio:
            self._check(torch.cat(errors))
        if meter.means()["policy/ratio_mean"] <= config.max_ratio:
            self.updater.step(meter)  # skipped where a metric, such as the KL, is not finite (`accumulate`)
        else:  # NaN is out of bounds
            self.updater.skip()
        return meter

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics.

        Raises:
            ConfigError: nothing of the policy trains.
        """
        config = self.config
        outputs = self._policy.score(part, entropy=config.entropy_coef > 0, temperature=self.run.temperature)
        if torch.is_grad_enabled() and not outputs.logprobs.requires_grad:
            raise ConfigError(
                "only the value function trains: every parameter of the language model is frozen; raise "
                "model.unfrozen_layers, or use an architecture that leaves its model trainable beside a reference"
            )
        values, old = outputs.need("values"), part["old_logprobs"]
        policy = policy_loss(outputs.logprobs, old, part["advantages"], clip=config.clip)
        if "is_weights" in part:
            policy = policy * part["is_weights"]
        value = value_loss(values, part["values"], part["returns"], clip=config.clip_value)
        loss = policy + config.value_coef * value
        if config.entropy_coef:
            loss = loss - config.entropy_coef * outputs.need("entropy")
        with torch.no_grad():
            ratio = ((outputs.logprobs - old) * part.action_mask).exp()
            clipped = value_clipped(values, part["values"], part["returns"], clip=config.clip_value)
            return loss, {
                "loss/policy": policy,
                "loss/value": value,
                "policy/approx_kl": ops.kl_estimate(old, outputs.logprobs, estimator="k3"),
                "policy/clip_fraction": ((ratio - 1).abs() > config.clip).float(),
                "policy/ratio_mean": ratio,
                "value/clip_fraction": clipped.float(),
                **({} if outputs.entropy is None else {"loss/entropy": outputs.entropy}),
            }

    def _check(self, errors: Tensor) -> None:
        """Warn if the policy that learns is not the one that sampled; `errors` holds |ratio - 1| of chosen tokens."""
        is_full, none = self.run.models.is_full_precision, errors.new_zeros(1)
        own = torch.cat([errors, none]).max() if is_full else errors.sum() / max(len(errors), 1)
        found, tolerance = self.run.ranks.gather([float(own)]), RATIO_TOLERANCE if is_full else LOW_PRECISION_TOLERANCE
        if any(not error <= tolerance for error in found):  # NaN warns too
            get_logger("ppo").warning(
                "ratio is not 1 on the first minibatch: sampler and trainer disagree, as with dropout that is on"
                + ("" if is_full else ", or with a model that low precision rounds more than others"),
                round=self.num_rounds + 1, **{"largest_error" if is_full else "mean_error": max(found)},
            )  # fmt: skip

    def state_dict(self) -> State:
        """Return the optimizer, the order of prompts, the KL coefficient, the score moments and the round's number."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.order.state_dict(),
            "kl": self.kl.state_dict(),
            "scale": self.scale.state_dict(),
            "num_rounds": self.num_rounds,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.order.load_state_dict(state["order"])
        self.kl.load_state_dict(state["kl"])
        self.num_rounds = state["num_rounds"]
        self.scale.load_state_dict(state["scale"])


def _explained(batch: Round, returns: Tensor, values: Tensor) -> Metrics:
    """Return the mean value and the share of the returns' variance that values explain, over chosen tokens."""

    def variance(numbers: Tensor) -> float:
        return batch.mean((numbers - batch.mean(numbers)) ** 2)

    whole = variance(returns)
    explained = 1.0 - variance(returns - values) / whole if whole > 0 else float("nan")
    return {"value/mean": batch.mean(values), "value/explained_variance": explained}
