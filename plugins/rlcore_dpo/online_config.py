"""The options of online DPO; light, so that `rlcore show online_dpo` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig
from rlcore_dpo.config import DPOConfig, DPOOptimizer, LossName, resolve, weights_of

ONLINE = "Guo et al. 2024, arXiv:2402.04792"


@config
class OnlineDPOConfig(BatchOptions):
    """Learn from pairs that the policy samples and reward functions rank."""

    batch_size: int = option(
        32, "prompts of one round and optimizer step, on all ranks together; each gives at most one pair", ge=1
    )
    num_generations: int = option(
        2, "answers to each prompt; the one with the highest score is chosen, and the one with the lowest rejected",
        ge=2, source=ONLINE,
    )  # fmt: skip
    min_margin: float = option(
        0.0, "a prompt whose two scores differ by at most this gives no pair; 0: equal scores give none", ge=0,
        lt=float("inf"),
    )  # fmt: skip
    loss: LossName | Mapping[str, float] = option(
        "sigmoid", "what is minimised for each pair: a loss of the trainer `dpo`, but not kto, or a sum of losses with "
        "their weights", source=ONLINE,
    )  # fmt: skip
    beta: float | None = option(
        None, "weight of the log-ratios in the loss; default: 2 for simpo, else 0.1", gt=0, lt=float("inf")
    )
    label_smoothing: float | None = option(
        None, "assumed share of wrong labels, of sigmoid, robust and exo; default: 0.001 for exo, else 0", ge=0, lt=0.5
    )
    average: Literal["mean", "sum"] = option("mean", "how ipo reduces log-ratios over the tokens of an answer")
    gamma: float = option(0.5, "margin of simpo", ge=0, source="arXiv:2405.14734")
    sft_coef: float | None = option(
        None, "weight of the negative log-likelihood of chosen answers, per token; default: 1 for cpo and orpo, else 0",
        ge=0,
    )  # fmt: skip
    reference_free: bool = option(False, "use log-probs instead of log-ratios; no reference is needed")
    ref_model: str | None = option(
        None, "folder or hub id of another model with the same vocabulary as reference; default: the policy before "
        "training, or with an adapter the model without it",
    )  # fmt: skip
    optimizer: OptimizerConfig = option(DPOOptimizer(lr=1e-6), "optimizer, learning-rate schedule, bound on gradients")


def pair_options(config: OnlineDPOConfig) -> DPOConfig:
    """Return the options of the losses of pairs, resolved; a reference scores every batch.

    Raises:
        ConfigError: two options contradict each other, or the loss is kto.
    """
    if config.loss == "kto":
        raise ConfigError(
            "trainer.loss = 'kto': learns from single answers, and online_dpo ranks pairs; choose a loss of pairs"
        )
    shared = {
        name: getattr(config, name)
        for name in ("loss", "beta", "label_smoothing", "average", "gamma", "sft_coef", "reference_free", "ref_model")
    }
    return resolve(DPOConfig(precompute_ref=False, cache_ref=False, batch_size=config.batch_size, **shared))


def workload(config: OnlineDPOConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    compares = not config.reference_free and not {*weights_of(pair_options(config))} <= {"cpo", "simpo", "orpo"}
    return {
        "batch_size": 2 * config.batch_size, "group": 2, "num_sampled": config.batch_size * config.num_generations,
        "passes": 1, "reference": compares and config.ref_model is None,
    }  # fmt: skip
