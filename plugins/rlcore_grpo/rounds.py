"""A round of GRPO: sample groups of responses, score them, and compare the responses of each group."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence

import attrs
import torch

from rlcore import ops
from rlcore.errors import ConfigError, Diverged
from rlcore.protocols import Policy
from rlcore.training import Order, Round, Run, by_block, rollout_health
from rlcore.types import Metrics, Prompt, Trajectories, grouped
from rlcore_grpo.advantages import (
    Groups,
    Scores,
    compare,
    compare_each,
    compare_turns,
    level,
    lone_fraction,
    overlong,
    returns_to_go,
    split_scores,
    to_tokens,
    to_turns,
    weighted_sum,
)
from rlcore_grpo.config import GRPOConfig, doubted, is_rescored
from rlcore_grpo.constraints import check_sampling, longest_response

ROUNDING, LOW_PRECISION_ROUNDING = 1e-5, 1e-2
"""Mean difference of two responses' KL, in nats per token, up to which rounding explains it."""
REWARDS = "token_rewards"
"""Column of the rewards of tokens, from which those of turns are computed."""


@attrs.frozen(eq=False)
class _Sampled:
    """Groups of a round that were sampled together.

    Attributes:
        batch: their responses.
        table: the scores of each by K reward functions.
        groups: their comparison without the KL, by which groups without spread are found.
    """

    batch: Round
    table: Scores
    groups: Groups

    @property
    def num_learning(self) -> int:
        """Number of groups with spread."""
        return int(self.groups.has_spread.sum())


class Rounds:
    """Samples rounds of groups.

    Args:
        config: the options.
        run: the run.
        policy: the policy that samples.

    Attributes:
        longest: most tokens of a response, or of all turns of an episode.
    """

    def __init__(self, config: GRPOConfig, run: Run, policy: Policy) -> None:
        self.config, self.run, self._policy = config, run, policy
        self.num_prompts = config.rollouts // config.num_generations
        self.order = run.data.order(run.prompts)
        self.longest = longest_response(config, run)
        check_sampling(config, run, self.longest)
        if config.zero_spread == "refill" and run.config.run.asynchronous:
            raise ConfigError(
                "trainer.zero_spread = 'refill': which prompts a round samples again depends on its scores, so that "
                "later rounds cannot be sampled ahead; set it to drop or keep, or run.asynchronous to 0"
            )
        self._doubted = doubted(config)

    def sample(self) -> tuple[Round, Metrics]:
        """Return a round with advantages, and its metrics; with `zero_spread: refill`, groups are sampled anew.

        Metrics of rewards and lengths, and the fraction of groups without spread, are about the prompts sampled first,
        so that refilling does not change what they mean. Advantages are about the round as it is learned from: `scale:
        batch` divides by the deviation of all its responses, and not of those that were sampled together.

        Returns:
            responses with the columns `advantages` (float[B], with `credit: turn` float[B, T]), `counts` (bool[B],
            whether the loss counts them), and those of `_scored`.
        """
        config = self.config
        first, metrics = self._sample(self.num_prompts)
        metrics["group/zero_spread_fraction"] = 1.0 - float(first.groups.has_spread.double().mean())
        metrics["group/reward_std_mean"] = float(first.groups.deviation.mean())
        parts = [first]
        missing = self.num_prompts - first.num_learning
        while config.zero_spread == "refill" and missing and len(parts) <= config.refill_batches:
            parts.append(self._sample(missing)[0])
            missing -= parts[-1].num_learning
        batch = self._with_advantages(parts)
        if config.zero_spread == "keep":
            return batch, metrics | {"group/dropped": 0.0}
        if config.zero_spread == "refill":
            metrics["group/refill_rounds"] = float(len(parts) - 1)
            if missing:
                self.run.warn_once(
                    "grpo",
                    "a round stays smaller than trainer.rollouts: too few groups have two different scores within "
                    "trainer.refill_batches; the prompts are too easy or too hard",
                )
        dropped = sum(len(part.groups.has_spread) - part.num_learning for part in parts)
        return batch, metrics | {"group/dropped": float(dropped)}

    def _with_advantages(self, parts: Sequence[_Sampled]) -> Round:
        """Return the responses that are learned from, of all parts, compared with each other."""
        config = self.config
        learning = [
            grouped((part.groups.has_spread | (config.zero_spread == "keep")).nonzero()[:, 0], config.num_generations)
            for part in parts
        ]
        batch = Round.join([part.batch.rows(rows) for part, rows in zip(parts, learning, strict=True)])
        tables = [part.table.rows(rows) for part, rows in zip(parts, learning, strict=True)]
        table = Scores(torch.cat([each.values for each in tables]), torch.cat([each.known for each in tables]))
        advantages = self._compared(batch, table, kl=True).advantages
        self._check(batch, table, advantages)
        if config.zero_spread == "keep" and not advantages.any():
            self.run.warn_once("grpo", "no group of a round has two different scores, so it teaches nothing")
        shares = advantages.split([len(rows) for rows in learning])
        for back, part, rows, share in zip(range(len(parts), 0, -1), parts, learning, shares, strict=True):
            first = share if share.dim() == 1 else share[:, 0]  # what followed the first turn is the whole episode
            whole = torch.zeros(len(part.batch), dtype=torch.float64).index_copy(0, rows, first)
            self.run.sampling.rollouts.note("advantage", part.batch.mine(whole).tolist(), back=back)
        counts = batch["has_score"] & (batch.ended | (not config.mask_truncated))
        if config.credit == "turn":
            advantages = to_tokens(batch.mine(advantages), batch.own.action_mask)
            batch = batch.with_only(*(name for name in batch.own.columns if name != REWARDS))
        return batch.with_columns(advantages=advantages.to(counts.device, torch.float32), counts=counts)

    def _check(self, batch: Round, table: Scores, advantages: torch.Tensor) -> None:
        """Check that every advantage is a number, before anything is learned from it.

        Raises:
            Diverged: an advantage is not finite.
        """
        is_broken = ~advantages.float().isfinite()
        broken = is_broken.nonzero()[:, 0].tolist()
        if not broken:
            return
        kl = batch["kl"].cpu() if "kl" in batch else torch.zeros(len(batch))
        # The response whose own numbers are at fault, and not one that is compared with it.
        row = next((i for i in broken if not bool(kl[i].isfinite() & table.values[i].isfinite().all())), broken[0])
        scores = table.values[row][table.known[row]].tolist()
        worst = float(advantages[row][is_broken[row]][0] if is_broken[row].any() else advantages[row].flatten()[0])
        raise Diverged(
            f"step {self.run.step + 1}: the advantage of response {row} of the round is {worst}, with "
            f"the scores {scores} and a KL of {float(kl[row]):g} nats to the reference: a number is not finite or too "
            "large, and nothing is learned from this round; resume from an earlier checkpoint with a lower "
            "trainer.optimizer.lr, or scale the rewards down"
        )

    def _sample(self, num_prompts: int) -> tuple[_Sampled, Metrics]:
        """Sample and score so many groups, all of which are returned."""
        run, config, size, begun = self.run, self.config, self.config.num_generations, time.perf_counter()
        rewards = run.data.reward_fn
        batch = run.rollout(self._take(self.order, num_prompts), group=size)
        batch, table = split_scores(batch, rewards.names if rewards else ())
        if config.credit == "turn":
            last = ops.place_last(batch.own["scores"], batch.own.action_mask)
            batch = batch.with_columns(**{REWARDS: batch.own.columns.get("dense", last)})
        batch = self._scored(batch)
        metrics = dict(batch.metrics)
        metrics["time/score_s"] = time.perf_counter() - begun - metrics["time/sample_s"]
        known = next((name for name in ("sampler_logprobs", "old_logprobs") if name in batch), None)
        if known is not None and bool(batch.num_actions.any()):
            metrics["policy/entropy"] = -batch.mean(batch.own[known])
        if self.config.credit == "turn":
            metrics["group/lone_turn_fraction"] = lone_fraction(self._returns(batch, table).known, size)
        if "kl" in batch:
            metrics["kl/mean"] = float(batch["kl"].mean())
            rollout_health(run, batch.with_only("old_logprobs", "ref_logprobs").rename(old_logprobs="logprobs"))
        return _Sampled(batch, table, self._compared(batch, table, kl=False)), metrics

    def upcoming(self, count: int) -> list[tuple[list[Prompt], int]]:
        """Return the first calls of `run.rollout` in each of the next rounds."""
        order = copy.copy(self.order)
        return [(self._take(order, self.num_prompts), self.config.num_generations) for _ in range(count)]

    def _take(self, order: Order, num_prompts: int) -> list[Prompt]:
        return [self.run.prompts[index] for index in order.take(num_prompts)]

    def _compared(self, batch: Round, table: Scores, *, kl: bool) -> Groups:
        """Compare the responses of each group, with or without a KL that is part of their scores."""
        config, size, rewards = self.config, self.config.num_generations, self.run.data.reward_fn
        weights = torch.tensor([each.weight for each in rewards.functions] if rewards else [], dtype=torch.float64)
        added, scored = torch.zeros(len(batch), dtype=torch.float64), table.known.any(1)
        if config.overlong_buffer:
            added += overlong(
                batch.num_actions.cpu(), longest=self.longest, buffer=config.overlong_buffer,
                penalty=config.overlong_penalty,
            )  # fmt: skip
        if kl and config.kl_coef and config.kl_in == "reward":
            added -= config.kl_coef * self._kl(batch, scored)
        if config.credit == "turn":
            returns = self._returns(batch, table, added)
            return compare_turns(returns, size, baseline=config.baseline, scale=config.scale)
        if config.combine == "normalize_then_sum":
            return compare_each(table, weights, added, size, baseline=config.baseline)
        return compare(weighted_sum(table, weights).plus(added), size, baseline=config.baseline, scale=config.scale)

    def _returns(self, batch: Round, table: Scores, added: torch.Tensor | None = None) -> Scores:
        """Return what followed each turn of each response that has a score, with numbers added to the last turns."""
        sums, is_turn = to_turns(batch.own[REWARDS].cpu(), batch.own.action_mask.cpu())
        num_turns = batch.all(is_turn.sum(1).to(batch.num_actions.device)).cpu()
        room = max(int(num_turns.max()), 1) - sums.shape[1]
        rewards = batch.all(torch.nn.functional.pad(sums, (0, room)).to(batch.num_actions.device)).cpu()
        is_turn = torch.arange(rewards.shape[1]) < num_turns[:, None]
        if added is not None:
            rewards.scatter_add_(1, (is_turn.sum(1, keepdim=True) - 1).clamp(min=0), added[:, None])
        returns = returns_to_go(rewards, discount=self.config.turn_discount)
        return Scores.of(returns, is_turn & table.known.any(1, keepdim=True))

    def _kl(self, batch: Round, scored: torch.Tensor) -> torch.Tensor:
        """Return the KL of each response, the same in a group if it differs there by rounding only: float64[B].

        Otherwise rounding would give advantages to responses with equal rewards, and a scale would enlarge them.
        """
        size = self.config.num_generations
        longest = batch.num_actions.cpu().view(len(batch) // size, size).amax(1)
        rounding = ROUNDING if self.run.models.is_full_precision else LOW_PRECISION_ROUNDING
        kl = Scores.of(batch["kl"].cpu(), scored)
        return level(kl, size, tolerance=rounding * longest.double()).values

    @torch.no_grad()
    def _scored(self, batch: Round) -> Round:
        """Add what the loss needs of the policy that sampled, and of the reference.

        `old_logprobs` is left out where the trainer makes one optimizer step a round: there it is the log-prob itself.
        """
        config, run = self.config, self.run
        if "logprobs" in batch:
            batch = batch.rename(logprobs="sampler_logprobs")
        elif self._doubted:
            raise ConfigError(f"{self._doubted}: the sampler returns no log-probs")
        if not is_rescored(config):
            return batch.with_only("scores", "has_score", *({"sampler_logprobs", REWARDS} & set(batch.own.columns)))
        is_known = run.sampling.is_exact and "sampler_logprobs" in batch and not self._doubted
        size = config.micro_batch_size or (0 if config.micro_batch_tokens else config.rollouts // config.minibatches)
        with by_block(self._policy):
            if is_known and config.top_entropy == 1:
                batch = batch.with_columns(old_logprobs=batch.own["sampler_logprobs"])
            else:
                batch = batch.map(self._rescored, size=size, tokens=config.micro_batch_tokens)
            if config.kl_coef:
                batch = batch.map(self._referred, size=size, tokens=config.micro_batch_tokens)
        if config.is_correction != "off":
            rows = batch.own
            weights = ops.correction(
                rows["old_logprobs"], rows["sampler_logprobs"], rows.action_mask, kind=config.is_correction,
                low=config.is_low, high=config.is_high,
            )  # fmt: skip
            batch = batch.with_columns(is_weights=weights)
        return batch

    def _rescored(self, part: Trajectories) -> Trajectories:
        is_wanted = self.config.top_entropy < 1
        outputs = self._policy.score(part, entropy=is_wanted, temperature=self.run.temperature)
        part = part.with_columns(old_logprobs=outputs.logprobs)
        return part.with_columns(entropy=outputs.need("entropy")) if is_wanted else part

    def _referred(self, part: Trajectories) -> Trajectories:
        reference = self._policy.reference_score(part, temperature=self.run.temperature).logprobs
        estimator = "k1" if self.config.kl_in == "loss" else self.config.kl_estimator
        kl = ops.kl_estimate(part["old_logprobs"], reference, estimator=estimator)
        kl = kl.masked_fill(~part.action_mask, 0.0).sum(1)
        return part.with_columns(ref_logprobs=reference, kl=kl)
