"""The options of PPO; light, so that `rlcore show ppo` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig

ZIEGLER = "Ziegler et al. 2019, arXiv:1909.08593"
SCHULMAN = "Schulman et al. 2017, arXiv:1707.06347"
HUANG = "Huang et al. 2024, arXiv:2403.17031"
VAGEN = "gamma_turn and gamma_token of VAGEN, NeurIPS 2025"
YAO = "Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training"
ANDRYCHOWICZ = "Andrychowicz et al. 2021, arXiv:2006.05990"


@config
class PPOOptimizer(OptimizerConfig):
    """The optimizer of PPO; `lr` depends on the model, and other options have their usual defaults."""

    lr: float | None = option(
        None, "learning rate after warm-up; null: 1e-6 for 1e9 parameters or more, and larger for smaller models and "
        "adapters (docs/training.md)", gt=0, lt=float("inf"), source="Touvron et al. 2023, arXiv:2307.09288",
    )  # fmt: skip
    published = (1e-6, 1e9)  # published for 7e9 to 70e9; the size is by measurement (docs/training.md)


@config
class PPOConfig(BatchOptions):
    """Proximal policy optimisation of a language model against a reward, with a penalty for leaving the reference."""

    rollouts: int = option(128, "responses sampled in a round, on all ranks together", ge=1, unit="sequences")
    epochs: int = option(4, "passes over a round's responses", ge=1, source=SCHULMAN)
    batch_size: int = option(32, "responses of one optimizer step, on all ranks together", ge=1, unit="sequences")

    gamma: float = option(1.0, "discount per chosen token", ge=0, le=1)
    lam: float = option(0.95, "weight of later TD errors in the advantages", ge=0, le=1, source="arXiv:1506.02438")
    turn_gamma: float | None = option(
        None, "discount from one turn of an episode to the next; if omitted, gamma", ge=0, le=1, source=VAGEN
    )
    turn_lam: float | None = option(
        None, "lam from one turn of an episode to the next; with gamma = lam = 1, advantages are those of turns",
        ge=0, le=1, source=VAGEN,
    )  # fmt: skip
    clip: float = option(0.2, "how far the ratio may leave 1 before its gradient stops", ge=0, le=1, source=SCHULMAN)
    clip_value: float = option(
        0.0, "how far a value may leave the old one before its gradient stops, in units of the score; 0: no clipping",
        ge=0, source=ANDRYCHOWICZ,
    )  # fmt: skip
    value_coef: float = option(1.0, "weight of the value loss", ge=0, source="trlX 1, TRL 0.1")
    entropy_coef: float = option(0.0, "weight of the entropy bonus", ge=0, source=SCHULMAN)
    whiten_advantages: bool = option(
        True, "normalise the advantages of a round to mean 0 and standard deviation 1", source=HUANG
    )
    min_advantage_std: float = option(
        1e-4, "smallest standard deviation by which advantages are divided, in units of the score", gt=0
    )

    kl_coef: float = option(
        0.001, "weight of the KL penalty, initial if adaptive; 0 needs no reference model", ge=0, source=ZIEGLER
    )
    kl_target: float | None = option(
        None, "mean KL per response to which kl_coef adapts; if omitted, kl_coef is fixed",
        gt=0, unit="nats", source=ZIEGLER,
    )  # fmt: skip
    kl_horizon: int = option(
        10_000, "number of responses over which an adaptive kl_coef changes; larger is slower", ge=1, source=ZIEGLER
    )
    kl_estimator: Literal["k1", "k2", "k3", "full"] = option(
        "k1", "estimator of the KL at a token; full sums over the vocabulary", source="Schulman 2020"
    )

    score_min: float | None = option(None, "lower bound of scores, applied before scaling")
    score_max: float | None = option(None, "upper bound of scores, applied before scaling")
    score_scaling: Literal["none", "running", "first"] = option(
        "none", "divide scores by the standard deviation of all scores so far (running) or of the first round (first)",
        source="trlX",
    )  # fmt: skip
    missing_eos_penalty: float = option(0.0, "subtracted from the score of a truncated response", ge=0, source=HUANG)
    bootstrap_truncated: bool = option(
        False, "the value after a truncated response is the critic's estimate instead of 0"
    )

    target_kl: float | None = option(
        0.03,
        "end a round's epochs when the approximate KL to the old policy exceeds 1.5 times this, per token; null: never",
        gt=0,
        unit="nats",
    )
    is_correction: Literal[
        "off", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"
    ] = option(
        "off", "what multiplies the policy loss of a token: from the policy's probability over that of a sampler that "
        "computes other log-probs, such as a serving engine, of the token or of the whole response", source=YAO,
    )  # fmt: skip
    is_low: float = option(0.0, "smallest such weight", ge=0)
    is_high: float = option(2.0, "largest such weight", gt=0, source=YAO)
    max_ratio: float = option(
        10.0, "skip optimizer steps of minibatches whose mean ratio is larger", gt=1, source="TRL 0.7"
    )
    optimizer: OptimizerConfig = option(PPOOptimizer(), "optimizer, learning-rate schedule, gradient clipping")


def check(config: PPOConfig, world: int) -> None:
    """Check options against each other.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    low, high = config.score_min, config.score_max
    if config.kl_target is not None and not config.kl_coef:
        raise ConfigError(
            f"trainer.kl_coef = 0 with trainer.kl_target = {config.kl_target}: the adaptive weight is scaled "
            "each round and would stay 0; set kl_coef above 0 or remove kl_target"
        )
    if config.kl_target is not None and 0.2 * config.rollouts >= config.kl_horizon:
        raise ConfigError(
            f"trainer.kl_horizon = {config.kl_horizon}: with {config.rollouts} rollouts, one round could make the "
            f"weight of the KL penalty negative; set it above {0.2 * config.rollouts:g}"
        )
    if low is not None and high is not None and low >= high:
        raise ConfigError(
            f"trainer.score_min = {low}: must be below score_max = {high}, or all scores become one number"
        )
    if config.rollouts < world:
        raise ConfigError(
            f"trainer.rollouts = {config.rollouts}: fewer than {world} processes, which each need a prompt"
        )


def workload(config: PPOConfig, num_prompts: int) -> Mapping[str, Any]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes and heads of a run with these options, for `rlcore plan`."""
    return {
        "num_scored": config.micro_batch_size or (config.rollouts if config.micro_batch_tokens else config.batch_size),
        "passes": config.epochs,
        "value_head": True,
        "reference": config.kl_coef > 0,
        "entropy": config.entropy_coef > 0,
    }
