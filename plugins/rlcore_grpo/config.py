"""The options of GRPO and its presets; light, so that `rlcore show grpo` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from rlcore.config import config, option
from rlcore.settings import BatchOptions, OptimizerConfig

GRPO = "Shao et al. 2024, arXiv:2402.03300"
DAPO = "Yu et al. 2025, arXiv:2503.14476"
DR_GRPO = "Liu et al. 2025, arXiv:2503.20783"
GSPO = "Zheng et al. 2025, arXiv:2507.18071"
CISPO = "MiniMax 2025, arXiv:2506.13585"
SCALE_RL = "Khatri et al. 2025, arXiv:2510.13786"
LUSPO = "Liu et al. 2026, arXiv:2602.05261"
VESPO = "Shen et al. 2026, arXiv:2602.10693"
SAPO = "Gao et al. 2025, arXiv:2511.20347"
RLOO = "Ahmadian et al. 2024, arXiv:2402.14740"
TR_DPO = "Gorbatovski et al. 2024, arXiv:2404.09656"
GIGPO = "Feng et al. 2025, arXiv:2505.10978"
DEEPSEEK = "DeepSeek-V3.2, arXiv:2512.02556"

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "grpo": {"norm": "sequence"},
    "dr_grpo": {"scale": "none", "norm": "constant"},
    "dapo": {"clip_high": 0.28, "zero_spread": "refill", "overlong_buffer": 0.2},
    "gspo": {"level": "sequence", "norm": "sequence", "clip_low": 3e-4, "clip_high": 4e-4},
    "luspo": {"level": "sequence", "norm": "sum", "clip_low": 3e-4, "clip_high": 4e-4},
    "cispo": {"surrogate": "cispo"},
    "vespo": {"surrogate": "vespo"},
    "rloo": {"baseline": "loo", "scale": "none", "kl_coef": 0.05, "kl_in": "reward"},
}
"""Defaults that a preset changes."""


def _of_preset(name: str, default: object) -> object:
    """Return a default that the preset may change."""
    return attrs.Factory(lambda self: PRESETS.get(self.preset or "", {}).get(name, default), takes_self=True)


def _estimator() -> object:
    return attrs.Factory(lambda self: "k1" if self.kl_in == "reward" else "k3", takes_self=True)


@config
class GRPOOptimizer(OptimizerConfig):
    """The optimizer of GRPO; `lr` depends on the model, and other options have their usual defaults."""

    lr: float | None = option(
        None, "learning rate after warm-up; null: 1e-6 for 7e9 parameters or more, and larger for smaller models "
        "and adapters (docs/training.md)", gt=0, lt=float("inf"), source=f"{GRPO}, section 4.2; {RLOO}",
    )  # fmt: skip
    published = (1e-6, 7e9)


@config
class GRPOConfig(BatchOptions):
    """Group-relative policy optimisation."""

    preset: Literal["grpo", "dr_grpo", "dapo", "gspo", "luspo", "cispo", "vespo", "rloo"] | None = option(
        None, "a published algorithm, whose options become the defaults of those below"
    )
    rollouts: int = option(
        64, "responses of a round over all ranks, a multiple of num_generations", ge=2, unit="sequences"
    )
    num_generations: int = option(
        8, "responses to each prompt of a round, which are compared with each other", ge=1, unit="sequences",
        source=GRPO,
    )  # fmt: skip
    iterations: int = option(1, "passes over a round", ge=1, source=GRPO)
    minibatches: int = option(1, "parts of a round, each learned from in one optimizer step of a pass", ge=1)

    baseline: Literal["mean", "loo"] = option(
        _of_preset("baseline", "mean"),
        "what is subtracted from a score: the mean of its group, or that of the group's other responses",
        source=RLOO,
    )
    scale: Literal["group", "batch", "none"] = option(
        _of_preset("scale", "group"),
        "what divides the difference: the standard deviation of its group, or of the round, plus 1e-4, or nothing",
        source=DR_GRPO,
    )
    combine: Literal["sum", "normalize_then_sum"] = option(
        "sum",
        "several reward functions: their weighted sum is compared, or each is compared by itself and then summed, with "
        "penalties and divided by the deviation of the round",
        source="GDPO, arXiv:2601.05242",
    )
    credit: Literal["episode", "turn"] = option(
        "episode",
        "what has an advantage: a whole episode, or each of its turns, by the rewards of that turn and of those that "
        "follow, compared with the same turn of the group's other episodes",
        source=GIGPO,
    )
    turn_discount: float = option(
        1.0, "factor by which each further turn lowers the weight of a reward under `credit: turn`", ge=0, le=1
    )
    zero_spread: Literal["keep", "drop", "refill"] = option(
        _of_preset("zero_spread", "keep"),
        "groups whose scores before the KL are all equal: `keep` them, with advantages of 0 or of the KL in the score; "
        "`drop` them; `refill`: drop them and sample other prompts in their place",
        source=DAPO,
    )
    refill_batches: int = option(10, "most times a round samples again to refill dropped groups", ge=1)
    overlong_buffer: float = option(
        _of_preset("overlong_buffer", 0.0),
        "last tokens of gen.max_new_tokens (of all turns of an episode together), or below 1 their share of it, over "
        "which a penalty grows linearly; 0: none",
        ge=0, source=DAPO,
    )  # fmt: skip
    overlong_penalty: float = option(1.0, "penalty of a response of gen.max_new_tokens", ge=0, source=DAPO)
    mask_truncated: bool = option(
        False, "leave responses without an end out of the loss; they stay in the baseline of their group", source=DAPO
    )

    surrogate: Literal["clip", "cispo", "sapo", "vespo"] = option(
        _of_preset("surrogate", "clip"), "the loss of a token", source=f"PPO; MiniMax 2025; {SAPO}; {VESPO}"
    )
    level: Literal["token", "sequence", "product"] = option(
        _of_preset("level", "token"),
        "what the ratio to the old policy is about: a token, or a whole response, as the geometric mean over its "
        "tokens (`sequence`) or as their product, the ratio of the response's probabilities, between exp(-20) and "
        "exp(20) (`product`)",
        source=GSPO,
    )
    norm: Literal["token", "sequence", "sum", "constant"] = option(
        _of_preset("norm", "token"),
        "mean of the loss: over all tokens; over responses, of the mean over their tokens (`sequence`) or of the sum "
        "(`sum`); or the sum over tokens divided by all responses, masked ones too, times gen.max_new_tokens",
        source=f"{DR_GRPO}; sum: {LUSPO}",
    )
    clip_low: float = option(
        _of_preset("clip_low", 0.2), "how far the ratio may fall below 1 before its gradient stops", ge=0, le=1,
        source=GRPO,
    )  # fmt: skip
    clip_high: float = option(
        _of_preset("clip_high", 0.2), "how far the ratio may rise above 1 before its gradient stops", ge=0, source=DAPO
    )
    cispo_cap: float = option(
        5.0, "upper bound of the ratio itself, which weighs tokens under `surrogate: cispo`", gt=0, source=SCALE_RL
    )
    sapo_tau: float = option(
        1.0, "temperature of the sigmoid of `surrogate: sapo` for positive advantages", gt=0, source=SAPO
    )
    sapo_tau_negative: float = option(1.05, "the same for the other advantages", gt=0, source=SAPO)
    vespo_k: float = option(
        2.0, "exponent k of `surrogate: vespo` for advantages of at least 0: the larger, the less responses count that "
        "have become less probable", gt=0, source=VESPO,
    )  # fmt: skip
    vespo_lambda: float = option(
        3.0, "decay lambda of `surrogate: vespo` for advantages of at least 0: the larger, the less responses count "
        "that have become more probable", gt=0, source=VESPO,
    )  # fmt: skip
    vespo_k_negative: float = option(3.0, "vespo_k for negative advantages", gt=0, source=VESPO)
    vespo_lambda_negative: float = option(2.0, "vespo_lambda for negative advantages", gt=0, source=VESPO)
    dual_clip: float | None = option(
        None, "upper bound of the ratio for negative advantages; null: none", gt=1, source="arXiv:1912.09729"
    )
    top_entropy: float = option(
        1.0, "share of an optimizer step's tokens that learn, those of the highest entropy", gt=0, le=1,
        source="Wang et al. 2025, arXiv:2506.01939",
    )  # fmt: skip
    entropy_coef: float = option(0.0, "weight of the entropy bonus", ge=0)

    kl_coef: float = option(
        _of_preset("kl_coef", 0.0), "weight of the KL to the reference; 0 needs no reference model", ge=0, source=GRPO
    )
    kl_in: Literal["loss", "reward"] = option(
        _of_preset("kl_in", "loss"), "whether the KL is part of the loss or subtracted from the score", source=RLOO
    )
    kl_estimator: Literal["k1", "k2", "k3"] = option(
        _estimator(), "estimator of the KL at a token; default: k3 in the loss, k1 in the score",
        source="Schulman 2020",
    )  # fmt: skip
    kl_ratio: bool = option(
        False, "multiply the KL in the loss by the ratio, which makes the gradient of k3 unbiased", source=DEEPSEEK
    )

    sync_ref_every: int = option(
        0, "optimizer steps after which the reference moves towards the policy; 0: it stays", ge=0, unit="steps",
        source=TR_DPO,
    )  # fmt: skip
    sync_ref_alpha: float = option(
        0.6, "share of the policy's weights in the reference then; the rest are its own", gt=0, le=1, source=TR_DPO
    )

    is_correction: Literal[
        "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"
    ] = option(
        "off",
        "weights for responses whose sampler computes other log-probs than the trainer, from a forward pass of the "
        "trainer before it learns",
        source="arXiv:2503.14286",
    )
    is_low: float = option(0.0, "smallest such weight", ge=0)
    is_high: float = option(2.0, "largest such weight", gt=0)
    off_policy_mask: float | None = option(
        None,
        "leave out responses with a negative advantage whose mean log-prob is lower than the sampler's by more than "
        "this; null: none",
        gt=0, unit="nats", source=DEEPSEEK,
    )  # fmt: skip
    optimizer: OptimizerConfig = option(GRPOOptimizer(), "optimizer, learning-rate schedule, gradient clipping")


def workload(config: GRPOConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    batch_size = -(-config.rollouts // config.num_generations // config.minibatches) * config.num_generations
    return {
        "batch_size": batch_size,
        "num_scored": (config.micro_batch_size or batch_size) if is_rescored(config) else 0,
        "passes": config.iterations,
        "reference": config.kl_coef > 0,
        "entropy": config.entropy_coef > 0 or config.top_entropy < 1,
    }


def is_rescored(config: GRPOConfig) -> bool:
    """Return whether the trainer's log-probs of a round are needed before it learns from it."""
    return (
        config.iterations * config.minibatches > 1
        or config.kl_coef > 0
        or config.is_correction != "off"
        or config.top_entropy < 1
    )


def doubted(config: GRPOConfig) -> str:
    """Return the option because of which the sampler's log-probs are compared with the trainer's; "" without one."""
    if config.is_correction != "off":
        return f"trainer.is_correction = {config.is_correction!r}"
    return "" if config.off_policy_mask is None else f"trainer.off_policy_mask = {config.off_policy_mask:g}"
