"""Arguments of TRL whose meaning depends on others: the losses of GRPO, its reference, samplers, and model options."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rlcore_tools.conversion.conversion import Conversion

GROUP_LOSSES: Mapping[str, Mapping[str, str]] = MappingProxyType({
    "grpo": {"norm": "sequence"},
    "dapo": {"norm": "token"},
    "bnpo": {"norm": "token"},
    "dr_grpo": {"norm": "constant"},
    "cispo": {"norm": "token", "surrogate": "cispo"},
    "sapo": {"norm": "sequence", "surrogate": "sapo"},
    "luspo": {"norm": "sum"},
    "vespo": {"norm": "token", "surrogate": "vespo"},
})  # fmt: skip
"""TRL's loss types of GRPO, as options."""
CORRECTION = "vllm_importance_sampling"
CORRECTED = {"mode": "sequence_mask", "clip_max": 3.0, "clip_min": None, "cap": None}
"""TRL's defaults of the correction of vLLM's log-probs."""
SYNCED = {"ref_model_sync_steps": 512, "ref_model_mixup_alpha": 0.6}
"""TRL's defaults of a reference that moves."""


def convert_surrogate(conversion: Conversion, given: dict[str, Any], loss: Any) -> None:
    """Convert the loss type of GRPO, and the bounds that it reads."""
    if loss is None:
        return
    if str(loss) not in GROUP_LOSSES:
        conversion.leave("loss_type", loss, "there is no such loss; the options surrogate, level and norm select one")
        return
    for name, value in GROUP_LOSSES[loss].items():
        conversion.put(f"trainer.{name}", value)
    if "surrogate" in GROUP_LOSSES[loss]:
        _convert_bounds(conversion, given, loss)
    if loss == "bnpo":
        conversion.notes.append("trainer.norm: token is a mean over the optimizer step; TRL's over each micro-batch")
    if loss == "luspo" and given.get("importance_sampling_level") != "sequence":
        conversion.notes.append("trainer.level: is token, TRL's default; LUSPO is defined with sequence")
    if given.get("mask_truncated_completions") and conversion.values["trainer"]["norm"] in ("sequence", "sum"):
        conversion.notes.append("trainer.mask_truncated: TRL divides by all responses, masked ones too")


def _convert_bounds(conversion: Conversion, given: dict[str, Any], loss: str) -> None:
    """Convert the bounds on the ratio, of a loss that is not clipped on both sides."""
    bounds = {name: given.pop(name, None) for name in ("epsilon", "epsilon_high", "delta")}
    if loss == "cispo":  # whose bound is on the ratio itself
        low, high = bounds.pop("epsilon"), bounds.pop("epsilon_high")
        conversion.put("trainer.cispo_cap", high or low or 0.2)
    for name, value in bounds.items():
        if value is not None:
            conversion.leave(name, value, f"{loss} does not read it")


def convert_group(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert what depends on the reference, its motion and the ratio in its KL, and check the bonus for entropy."""
    if not conversion.has("trainer.sync_ref_every"):
        _drop_unused_reference(given)
        return
    norm = conversion.values["trainer"].get("norm", "token")
    if given.get("entropy_coef") and norm != "token":
        conversion.notes.append(
            f"trainer.entropy_coef: the bonus is part of the mean of trainer.norm, {norm}; TRL's is a mean over tokens"
        )
    moves = given.pop("sync_ref_model", None)
    for name, default in SYNCED.items():
        value = given.pop(name, None)
        if moves:
            ours = "sync_ref_every" if name == "ref_model_sync_steps" else "sync_ref_alpha"
            conversion.put(f"trainer.{ours}", default if value is None else value)
        elif value not in (None, default):
            conversion.leave(name, value, "sync_ref_model is not set")
    is_rloo = conversion.values["trainer"].get("preset") == "rloo"
    ratio = given.pop("use_bias_correction_kl", None if is_rloo else True)
    if ratio is not None and given.get("beta"):
        conversion.put("trainer.kl_ratio", bool(ratio))
        if given.get("importance_sampling_level") == "sequence":
            conversion.notes.append("trainer.kl_ratio: is the ratio of a token, TRL's that of the response here")
    elif ratio not in (None, True):
        conversion.leave("use_bias_correction_kl", ratio, "there is no KL: beta is 0")


def _drop_unused_reference(given: dict[str, Any]) -> None:
    """Remove TRL's defaults of a reference that does not move."""
    unused = {} if given.get("sync_ref_model") else {"sync_ref_model": False, **SYNCED}
    for name, default in unused.items():
        if given.get(name) == default:
            given.pop(name)


def convert_group_dropout(conversion: Conversion, given: dict[str, Any]) -> None:
    """Report that TRL's GRPO and RLOO keep the dropout of a model that has some, unless told otherwise."""
    if conversion.trainer != "grpo":
        return
    if (is_off := given.get("disable_dropout")) in (None, False):
        conversion.notes.append("dropout: there is none here; TRL's default keeps that of the model")
    if is_off in (None, False, True):
        given.pop("disable_dropout", None)


def convert_sampler(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the correction of log-probs of vLLM, and the options of sampling that are one mapping."""
    chosen = {name: given.pop(f"{CORRECTION}_{name}", None) for name in CORRECTED}
    switch = given.pop(f"{CORRECTION}_correction", None)
    if given.get("use_vllm") and conversion.has("trainer.is_correction"):
        if switch is not False:
            conversion.put("trainer.is_correction", chosen["mode"] or CORRECTED["mode"])
            conversion.put("trainer.is_high", chosen["cap"] or chosen["clip_max"] or CORRECTED["clip_max"])
            if chosen["clip_min"] is not None:
                conversion.put("trainer.is_low", chosen["clip_min"])
    else:
        for name, value in chosen.items():
            if value not in (None, CORRECTED[name]):
                conversion.leave(f"{CORRECTION}_{name}", value, "use_vllm is not set")
        if switch not in (None, True, False):
            conversion.leave(f"{CORRECTION}_correction", switch, "use_vllm is not set")
    for name in ("min_p", "repetition_penalty"):
        conversion.put_sampling(name, given.pop(name, None))
    options = given.get("generation_kwargs")
    if isinstance(options, Mapping):
        given.pop("generation_kwargs")
        for name, value in options.items():
            conversion.put_sampling(name, value, source="generation_kwargs.")


def convert_model(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert noise, compilation and kernels, which decoder-only models have."""
    noise, kernels = given.pop("neftune_noise_alpha", None), given.pop("use_liger_kernel", None)
    backend, compiles = given.pop("torch_compile_backend", None), given.pop("torch_compile", None)
    compiler = backend or ("inductor" if compiles is True else compiles)
    if conversion.trainer == "reward":
        for name, value in (("neftune_noise_alpha", noise), ("use_liger_kernel", kernels), ("torch_compile", compiler)):
            if value:
                conversion.leave(name, value, "models that score have no such option")
        return
    if noise and conversion.has("trainer.dropout"):
        conversion.put("model.neftune_alpha", noise)
        conversion.notes.append(
            "model.neftune_alpha: its L is the length of each sequence, TRL's that of the padded batch"
        )
        if conversion.trainer == "dpo":
            conversion.put("trainer.dropout", True)
            given.pop("disable_dropout", None)
            conversion.notes.append("trainer.dropout: must be true with model.neftune_alpha; TRL keeps dropout off")
    elif noise:
        conversion.leave(
            "neftune_noise_alpha",
            noise,
            f"trainer {conversion.trainer!r} compares the policy with the one that sampled",
        )
    if kernels:
        conversion.put("model.liger_kernel", True)
    if compiler:
        conversion.put("model.compile", compiler)


def convert_rloo(conversion: Conversion, arguments: Mapping[str, Any]) -> None:
    """Set what makes GRPO the trainer of TRL's RLOOConfig."""
    for name, value in (("preset", "rloo"), ("level", "product"), ("norm", "sequence")):
        conversion.put(f"trainer.{name}", value)
    if arguments.get("normalize_advantages"):
        conversion.notes.append(
            "trainer.scale: batch divides by the deviation of the scores of a round, TRL by that of its advantages"
        )


def convert_reference_free(conversion: Conversion, given: dict[str, Any], method: str) -> None:
    """Convert the losses of TRL's CPOConfig and ORPOConfig, which compare no reference."""
    if method == "orpo":
        conversion.put("trainer.nll", "full")
        return
    conversion.put("trainer.sft_coef", given.pop("cpo_alpha"))
    loss, alpha = given.get("loss_type"), given.pop("alpha", None)
    if loss == "alphapo" or alpha:
        how = "few use AlphaPO, and it is not among the losses; simpo and cpo are its limits at alpha = 0"
        conversion.leave("alpha", alpha, how)
    if loss == "sigmoid":
        given["loss_type"] = "cpo"
    elif loss == "alphapo":
        given["loss_type"] = "simpo"
    elif loss != "simpo":
        conversion.leave("loss_type", loss, "without a reference there are the losses cpo and simpo; cpo is written")
        given["loss_type"] = "cpo"
