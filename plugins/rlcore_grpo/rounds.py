"""A round of GRPO: sample groups of responses, score them, and compare the responses of each group."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch

from rlcore import ops
from rlcore.errors import ConfigError
from rlcore.protocols import Policy
from rlcore.training import Order, Run, Scored, gather_round, put_through, rollout_health
from rlcore.types import Metrics, Trajectories, grouped
from rlcore_grpo.advantages import Groups, compare, compare_each, overlong, weighted_sum
from rlcore_grpo.config import GRPOConfig, is_rescored
from rlcore_grpo.loss import correction


class Rounds:
    """Samples rounds of groups; every rank samples whole groups, and then holds all of them.

    Args:
        config: the options.
        run: the run.
        policy: the policy that samples.
    """

    def __init__(self, config: GRPOConfig, run: Run, policy: Policy) -> None:
        self.config, self.run, self._policy = config, run, policy
        self.num_prompts = config.rollouts // config.num_generations
        self.order = Order(len(run.prompts), run.config.run.seed)
        gen = run.config.gen
        if config.is_correction != "off" and (gen.top_k or gen.top_p < 1):
            raise ConfigError(
                f"trainer.is_correction = '{config.is_correction}': with gen.top_k or gen.top_p the log-probs of "
                "sampler and trainer are those of different distributions; leave these options out, or set it to off"
            )

    def sample(self) -> tuple[Trajectories, Metrics]:
        """Return a round with advantages, and its metrics; with `zero_spread: refill`, groups are sampled anew.

        Metrics of rewards and lengths, and the fraction of groups without spread, are about the prompts sampled first,
        so that refilling does not change what they mean.

        Returns:
            responses with the columns `advantages` (float[B]) and `counts` (bool[B], whether the loss counts them), and
            those of `_scored`; the same on every rank.
        """
        config, size = self.config, self.config.num_generations
        batch, groups, metrics = self._sample(self.num_prompts)
        metrics["group/zero_spread_fraction"] = 1.0 - float(groups.has_spread.double().mean())
        metrics["group/reward_std_mean"] = float(groups.deviation.mean())
        if config.zero_spread == "keep":
            if not groups.has_spread.any():
                self.run.warn_once("grpo", "no group of a round has two different scores, so it teaches nothing")
            return batch, metrics | {"group/dropped": 0.0}
        kept, dropped, refills = [batch.rows(_rows(groups, size))], int((~groups.has_spread).sum()), 0
        missing = self.num_prompts - int(groups.has_spread.sum())
        while config.zero_spread == "refill" and missing and refills < config.refill_batches:
            more, groups, _ = self._sample(max(missing, self.run.ranks.world))
            kept.append(more.rows(_rows(groups, size)[: missing * size]))
            dropped += int((~groups.has_spread).sum())
            missing -= min(missing, int(groups.has_spread.sum()))
            refills += 1
        if config.zero_spread == "refill":
            metrics["group/refill_rounds"] = float(refills)
            if missing:
                self.run.warn_once(
                    "grpo",
                    "a round stays smaller than trainer.rollouts: too few groups have two different scores within "
                    "trainer.refill_batches; the prompts are too easy or too hard",
                )
        return Trajectories.concat(kept), metrics | {"group/dropped": float(dropped)}

    def _sample(self, num_prompts: int) -> tuple[Trajectories, Groups, Metrics]:
        """Sample and score so many groups, all of which are returned."""
        run, size = self.run, self.config.num_generations
        indices = self.order.take(num_prompts)
        rows = run.ranks.share(num_prompts * size, group=size)
        begun = time.perf_counter()
        batch, scored = run.rollout([run.prompts[indices[row // size]] for row in rows], group=size)
        batch = self._scored(batch)
        table = self._table(rows, scored)
        batch, metrics = gather_round(run, batch, scored, group=size)
        groups = self._compared(batch, table)
        run.rollouts.note("advantage", groups.advantages[list(rows)].tolist())
        counts = batch["has_score"] & (batch.ended | (not self.config.mask_truncated))
        batch = batch.with_columns(advantages=groups.advantages.to(batch.tokens.device, torch.float32), counts=counts)
        sample_s = scored.times["time/sample_s"]
        metrics |= {"time/sample_s": sample_s, "time/score_s": time.perf_counter() - begun - sample_s}
        if "kl" in batch:
            metrics["kl/mean"] = float(batch["kl"].mean())
            rollout_health(run, batch.with_only("old_logprobs", "ref_logprobs").rename(old_logprobs="logprobs"))
        return batch, groups, metrics

    def _table(self, rows: Sequence[int], scored: Scored) -> torch.Tensor:
        """Return the score of each response by each reward function, in the order of the round: float64[B, K]."""
        scores = [[math.nan if x is None else x for x in row] for row in zip(*scored.by_name.values(), strict=True)]
        whole = sorted(self.run.ranks.gather(list(zip(rows, scores, strict=True))))
        return torch.tensor([row for _, row in whole], dtype=torch.float64)

    def _compared(self, batch: Trajectories, table: torch.Tensor) -> Groups:
        config, size, rewards = self.config, self.config.num_generations, self.run.reward_fn
        weights = torch.tensor([each.weight for each in rewards.functions] if rewards else [], dtype=torch.float64)
        added = torch.zeros(len(table), dtype=torch.float64)
        if config.overlong_buffer:
            added += overlong(
                batch.num_actions.cpu(), longest=self.run.config.gen.max_new_tokens, buffer=config.overlong_buffer,
                penalty=config.overlong_penalty,
            )  # fmt: skip
        if config.kl_coef and config.kl_in == "reward":
            added -= config.kl_coef * batch["kl"].cpu().double()
        if added.any():
            added = added.masked_fill(table.isnan().all(1), math.nan)
            table, weights = torch.cat([table, added[:, None]], 1), torch.cat([weights, weights.new_ones(1)])
        if config.combine == "normalize_then_sum":
            return compare_each(table, weights, size, baseline=config.baseline)
        return compare(weighted_sum(table, weights), size, baseline=config.baseline, scale=config.scale)

    @torch.no_grad()
    def _scored(self, batch: Trajectories) -> Trajectories:
        """Add what the loss needs of the policy that sampled, and of the reference.

        `old_logprobs` is left out where the trainer makes one optimizer step a round: there it is the log-prob itself.
        """
        config, run = self.config, self.run
        if "logprobs" in batch:
            batch = batch.rename(logprobs="sampler_logprobs")
        elif config.is_correction != "off":
            raise ConfigError(f"trainer.is_correction = '{config.is_correction}': the sampler returns no log-probs")
        if not is_rescored(config):
            return batch.with_only(*({"sampler_logprobs"} & set(batch.columns)))
        if run.samples_exactly and "sampler_logprobs" in batch and config.top_entropy == 1:
            batch = batch.with_columns(old_logprobs=batch["sampler_logprobs"])
        else:
            batch = self._put_through(batch, self._rescored)
        if config.kl_coef:
            batch = self._put_through(batch, self._referred)
        if config.is_correction != "off":
            weights = correction(
                batch["old_logprobs"], batch["sampler_logprobs"], batch.action_mask, kind=config.is_correction,
                low=config.is_low, high=config.is_high,
            )  # fmt: skip
            batch = batch.with_columns(is_weights=weights)
        return batch

    def _put_through(self, batch: Trajectories, change: Callable[[Trajectories], Trajectories]) -> Trajectories:
        config = self.config
        size = config.micro_batch_size or (0 if config.micro_batch_tokens else config.rollouts // config.minibatches)
        return put_through(batch, change, size, tokens=config.micro_batch_tokens)

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


def _rows(groups: Groups, size: int) -> torch.Tensor:
    return grouped(groups.has_spread.nonzero()[:, 0], size)
