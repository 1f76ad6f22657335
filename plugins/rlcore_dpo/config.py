"""The options of DPO; light, so that `rlcore show dpo` needs no torch."""

from __future__ import annotations

from typing import Literal

import attrs

from rlcore.config import Workload, config, default_workload, evolve, option
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig

SMOOTHED = ("sigmoid", "robust", "exo")
"""Losses with an assumed share of wrong labels."""
WITHOUT_REFERENCE = ("cpo", "simpo", "orpo")
IMITATING = ("cpo", "orpo")
"""Losses that contain the negative log-likelihood of chosen answers by default."""


@config
class DPOConfig(BatchOptions):
    """Learn from pairs of a chosen and a rejected answer, or from answers with a verdict (`kto`)."""

    loss: Literal["sigmoid", "robust", "hinge", "ipo", "exo", "apo_zero", "apo_down", "cpo", "simpo", "orpo", "kto"] = (
        option("sigmoid", "what is minimised for each pair", source="arXiv:2305.18290")
    )
    beta: float | None = option(
        None, "weight of the log-ratios in the loss; of orpo, weight of the odds; default: 2 for simpo, else 0.1", gt=0,
        lt=float("inf"),
    )  # fmt: skip
    label_smoothing: float | None = option(
        None, "assumed share of wrong labels, of sigmoid, robust and exo; default: 0.001 for exo, else 0", ge=0, lt=0.5,
        source="arXiv:2403.00409",
    )  # fmt: skip
    average: Literal["mean", "sum"] = option(
        "mean", "how ipo reduces log-ratios over the tokens of an answer; a given beta has another meaning in each"
    )
    gamma: float = option(0.5, "margin of simpo", ge=0, source="arXiv:2405.14734")
    sft_coef: float | None = option(
        None, "weight of the negative log-likelihood of chosen answers, per token; default: 1 for cpo and orpo, else 0",
        ge=0,
    )  # fmt: skip
    nll: Literal["answer", "full"] = option(
        "answer", "tokens of that likelihood: those of the chosen answer, or of its prompt too"
    )
    desirable_weight: float = option(1.0, "weight of desirable answers, of kto", ge=0, source="arXiv:2402.01306")
    undesirable_weight: float = option(1.0, "weight of undesirable answers, of kto", ge=0)
    reference_free: bool = option(False, "use log-probs instead of log-ratios; no reference is computed")
    ref_model: str | None = option(
        None, "folder or hub id of another model with the same vocabulary as reference; default: the policy before "
        "training, or with an adapter the model without it",
    )  # fmt: skip
    precompute_ref: bool | None = option(
        None, "compute the reference's log-probs once, before the first step, instead of in every step; needs no "
        "second copy of the weights; default: true, except for kto",
    )  # fmt: skip
    batch_size: int = option(32, "pairs (of kto: answers) of one optimizer step, on all ranks together", ge=1)
    dropout: bool = option(False, "dropout as in the model's configuration")
    optimizer: OptimizerConfig = option(
        OptimizerConfig(lr=1e-6), "optimizer, learning-rate schedule, bound on gradients"
    )


def resolve(config: DPOConfig) -> DPOConfig:
    """Return the options with every default filled in.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    loss = config.loss
    if config.label_smoothing and loss not in SMOOTHED:
        raise ConfigError(
            f"trainer.label_smoothing = {config.label_smoothing}: loss '{loss}' has none; it belongs to "
            f"{', '.join(SMOOTHED)}"
        )
    smoothing = config.label_smoothing if config.label_smoothing is not None else 1e-3 * (loss == "exo")
    if loss == "exo" and smoothing == 0:
        raise ConfigError("trainer.label_smoothing = 0: loss 'exo' takes its logarithm; it must be above 0")
    if loss == "kto":
        _check_kto(config)
    compares = compares_with_reference(config)
    if config.ref_model is not None and not compares:
        reason = "reference_free is set" if config.reference_free else f"loss '{loss}' has no reference"
        raise ConfigError(f"trainer.ref_model = {config.ref_model!r}: {reason}; leave it out")
    precompute = config.precompute_ref if config.precompute_ref is not None else loss != "kto"
    return evolve(
        config,
        beta=config.beta or (2.0 if loss == "simpo" else 0.1),
        label_smoothing=smoothing,
        sft_coef=config.sft_coef if config.sft_coef is not None else float(loss in IMITATING),
        precompute_ref=compares and precompute,
    )


def _check_kto(config: DPOConfig) -> None:
    if config.batch_size < 2:
        raise ConfigError(
            f"trainer.batch_size = {config.batch_size}: loss 'kto' compares an answer with those to other prompts of "
            "its batch; it must be at least 2"
        )
    if config.precompute_ref:
        raise ConfigError(
            "trainer.precompute_ref = true: loss 'kto' scores mismatched answers, which differ in every batch; leave "
            "it out"
        )
    if config.reference_free:
        raise ConfigError("trainer.reference_free = true: loss 'kto' needs a reference; leave it out")
    if config.sft_coef:
        raise ConfigError(f"trainer.sft_coef = {config.sft_coef}: loss 'kto' has no chosen answers; leave it out")


def compares_with_reference(config: DPOConfig) -> bool:
    """Return whether the loss contains log-probs of a reference."""
    return config.loss not in WITHOUT_REFERENCE and not config.reference_free


def sample_pipeline(config: DPOConfig) -> str:
    """Return the name of the pipeline whose rows the loss learns from."""
    return "unpaired" if config.loss == "kto" else "preferences"


def workload(config: DPOConfig, num_prompts: int) -> Workload:
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    config, default = resolve(config), default_workload(config, num_prompts)
    group = 1 if config.loss == "kto" else 2
    compares = compares_with_reference(config)
    size = config.micro_batch_size or config.batch_size * group
    return attrs.evolve(
        default, batch_size=config.batch_size * group, group=group, num_scored=size if compares else 0,
        reference=compares and not config.precompute_ref,
    )  # fmt: skip
