"""The options of DPO; light, so that `rlcore show dpo` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from rlcore.config import config, evolve, option
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig

RAFAILOV = "Rafailov et al. 2023, arXiv:2305.18290"
TULU = "Lambert et al. 2024, arXiv:2411.15124"
SIMPO = "Meng et al. 2024, arXiv:2405.14734"
LossName = Literal[
    "sigmoid", "sigmoid_norm", "robust", "hinge", "ipo", "exo", "apo_zero", "apo_down", "nca", "bco", "sppo",
    "discopop", "cpo", "simpo", "orpo", "kto",
]  # fmt: skip
SFT = "sft"
"""Name of the negative log-likelihood of chosen answers in a sum of losses."""
LENGTH_WEIGHED = ("sigmoid", "robust")
"""Losses whose default beta grows for short answers."""
MEAN_BETA = 10.0
"""Smallest default of beta times the tokens of an answer. Published: 5 (Lambert et al. 2024), 2 to 10 (Meng et al.
2024), and 0.5 times the tokens of a summary (Rafailov et al. 2023)."""
SMOOTHED = ("sigmoid", "robust", "exo")
"""Losses with an assumed share of wrong labels."""
WITHOUT_REFERENCE = ("cpo", "simpo", "orpo")
IMITATING = ("cpo", "orpo")
"""Losses that contain the negative log-likelihood of chosen answers by default."""


OWNERS = {
    "label_smoothing": SMOOTHED, "gamma": ("simpo",), "average": ("ipo",), "tau": ("discopop",),
    "desirable_weight": ("kto",), "undesirable_weight": ("kto",),
}  # fmt: skip
"""Option → the losses that read it."""


@config
class DPOOptimizer(OptimizerConfig):
    """The optimizer of DPO; `lr` depends on the model, and other options have their usual defaults."""

    lr: float | None = option(
        None, "learning rate after warm-up; null: 1e-6 for 2.8e9 parameters or more, and larger for smaller models "
        "and adapters (docs/training.md)", gt=0, lt=float("inf"), source=f"{RAFAILOV}, appendix B",
    )  # fmt: skip
    published = (1e-6, 2.8e9)  # Pythia-2.8B


@config
class DPOConfig(BatchOptions):
    """Learn from pairs of a chosen and a rejected answer, or from answers with a verdict (`kto`)."""

    loss: LossName | Mapping[str, float] = option(
        "sigmoid", "what is minimised for each pair: a loss, or a sum of losses with their weights, such as "
        "`{sigmoid: 1, sft: 0.1}`", source=RAFAILOV,
    )  # fmt: skip
    beta: float | None = option(
        None, "weight of the log-ratios in the loss; of orpo, weight of the odds; default: 2 for simpo, else 0.1; of "
        "sigmoid and robust 10 / (mean tokens of an answer) if these are fewer than 100 (docs/training.md)", gt=0,
        lt=float("inf"), source=f"{RAFAILOV}, appendix B; {TULU}; {SIMPO}",
    )  # fmt: skip
    label_smoothing: float | None = option(
        None, "assumed share of wrong labels, of sigmoid, robust and exo; default: 0.001 for exo, else 0", ge=0, lt=0.5,
        source="arXiv:2403.00409",
    )  # fmt: skip
    average: Literal["mean", "sum"] = option(
        "mean", "how ipo reduces log-ratios over the tokens of an answer; a given beta has another meaning in each"
    )
    tau: float = option(
        0.05, "temperature of discopop, at which its two losses change over", gt=0, source="arXiv:2406.08414"
    )
    gamma: float = option(0.5, "margin of simpo", ge=0, source=SIMPO)
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
        "second copy of the weights; default: true, except for kto and streams",
    )  # fmt: skip
    cache_ref: bool = option(
        True, "keep precomputed log-probs in `.ref_logprobs` beside the run's folder, for later runs with the same "
        "rows and weights",
    )  # fmt: skip
    batch_size: int = option(32, "pairs (of kto: answers) of one optimizer step, on all ranks together", ge=1)
    dropout: bool = option(False, "dropout as in the model's configuration")
    optimizer: OptimizerConfig = option(DPOOptimizer(), "optimizer, learning-rate schedule, bound on gradients")


def resolve(config: DPOConfig, *, is_streamed: bool = False) -> DPOConfig:
    """Return the options with every default filled in; the rows of a stream are not known before the first step.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    losses = weights_of(config)
    _check_owners(config)
    if "exo" in losses and config.label_smoothing == 0:
        raise ConfigError("trainer.label_smoothing = 0: loss 'exo' takes its logarithm; it must be above 0")
    if "kto" in losses:
        _check_kto(config)
    compares = compares_with_reference(config)
    reason = "reference_free is set" if config.reference_free else f"loss '{next(iter(losses))}' has no reference"
    if config.ref_model is not None and not compares:
        raise ConfigError(f"trainer.ref_model = {config.ref_model!r}: {reason}; leave it out")
    if config.precompute_ref and not compares:
        raise ConfigError(f"trainer.precompute_ref = true: {reason}; leave it out")
    if config.nll == "full" and not _sft_coef(config):
        raise ConfigError(
            "trainer.nll = 'full': the loss has no negative log-likelihood of chosen answers; set trainer.sft_coef, or "
            "leave it out"
        )
    if is_streamed and ("kto" in losses or config.precompute_ref):
        option, value = ("loss", "kto") if "kto" in losses else ("precompute_ref", "true")
        raise ConfigError(
            f"trainer.{option} = {value}: all rows are read before the first step, but the samples are streamed; "
            + ("choose a loss of pairs, or do not stream" if option == "loss" else "set it to false, or do not stream")
        )
    precompute = "kto" not in losses and not is_streamed if config.precompute_ref is None else config.precompute_ref
    return evolve(config, sft_coef=_sft_coef(config), precompute_ref=compares and precompute)


def weights_of(config: DPOConfig) -> dict[str, float]:
    """Return the weight of each loss of pairs that is minimised.

    Raises:
        ConfigError: a loss is unknown or cannot be part of a sum, or a weight is not positive.
    """
    if isinstance(config.loss, str):
        return {config.loss: 1.0}
    known = [name for name in get_args(LossName) if name != "kto"]
    for name, weight in config.loss.items():
        if name not in (*known, SFT):
            reason = "learns from single answers, and is part of no sum" if name == "kto" else "is no loss of pairs"
            raise ConfigError(f"trainer.loss.{name}: {reason}; the losses are {', '.join(known)} and {SFT}")
        if not 0 < weight < float("inf"):
            raise ConfigError(f"trainer.loss.{name} = {weight}: a weight is a finite number above 0")
    if not (found := {name: weight for name, weight in config.loss.items() if name != SFT}):
        raise ConfigError(
            f"trainer.loss = {dict(config.loss)}: has no loss of pairs; add one of {', '.join(known)}, or use the "
            "trainer 'sft'"
        )
    return found


def _check_owners(config: DPOConfig) -> None:
    """Check that a loss reads each option that is set.

    Raises:
        ConfigError: an option differs from its default, and none of the losses reads it.
    """
    losses = weights_of(config)
    for name, owners in OWNERS.items():
        value = getattr(config, name)
        is_set = bool(value) if name == "label_smoothing" else value != getattr(DPOConfig(), name)
        if is_set and not {*losses} & {*owners}:
            raise ConfigError(
                f"trainer.{name} = {value!r}: loss '{next(iter(losses))}' has none; it belongs to {', '.join(owners)}"
            )


def _sft_coef(config: DPOConfig) -> float:
    """Return the weight of the likelihood: as given, or in cpo and orpo as much as in their papers."""
    inside = None if isinstance(config.loss, str) else config.loss.get(SFT)
    if inside is not None and config.sft_coef is not None:
        raise ConfigError(
            f"trainer.sft_coef = {config.sft_coef}: trainer.loss has the term '{SFT}' already; set one of them"
        )
    if config.sft_coef is not None:
        return config.sft_coef
    return inside if inside is not None else sum(w for name, w in weights_of(config).items() if name in IMITATING)


def beta_of(config: DPOConfig, loss: str, num_tokens: float | None = None) -> float:
    """Return beta of a loss: as given, or by default 2 for simpo, else 0.1 and for short answers more.

    A margin of m nats between two answers costs a policy m / T nats a token. With 0.1 the loss of `sigmoid` falls until
    m is about 40, which is little for an answer of 200 tokens, and for one of 10 tokens takes its whole probability. So
    the default is at least 10 / T, which is a beta of 10 for log-ratios that are means over tokens.

    Args:
        config: the options.
        loss: name of the loss.
        num_tokens: T, the mean number of tokens of an answer; None if it is unknown before training.
    """
    if config.beta is not None:
        return config.beta
    if num_tokens and loss in LENGTH_WEIGHED:
        return max(0.1, float(f"{MEAN_BETA / num_tokens:.1e}"))
    return 2.0 if loss == "simpo" else 0.1


def smoothing_of(config: DPOConfig, loss: str) -> float:
    """Return the assumed share of wrong labels of a loss, by default 0.001 for exo, else 0."""
    return config.label_smoothing if config.label_smoothing is not None else 1e-3 * (loss == "exo")


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
    return not config.reference_free and not {*weights_of(config)} <= {*WITHOUT_REFERENCE}


def sample_pipeline(config: DPOConfig) -> str:
    """Return the name of the pipeline whose rows the loss learns from."""
    return "unpaired" if config.loss == "kto" else "preferences"


def workload(config: DPOConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    config = resolve(config)
    group = 1 if config.loss == "kto" else 2
    compares = compares_with_reference(config)
    size = config.micro_batch_size or config.batch_size * group
    return {
        "batch_size": config.batch_size * group, "group": group, "num_scored": size if compares else 0,
        "reference": compares and not config.precompute_ref,
    }  # fmt: skip
