"""Arguments of TRL whose meaning depends on others: the losses of GRPO, its reference, samplers, and model options.

Also in this file: arguments of TRL's GKDConfig, DistillationConfig and OnlineDPOConfig whose meaning depends on
others; arguments of TRL that count: sequences of a step, steps, and how often something happens.
"""

from __future__ import annotations

import math
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


def convert_group(conversion: Conversion, given: dict[str, object]) -> None:
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


def _drop_unused_reference(given: dict[str, object]) -> None:
    """Remove TRL's defaults of a reference that does not move."""
    unused = {} if given.get("sync_ref_model") else {"sync_ref_model": False, **SYNCED}
    for name, default in unused.items():
        if given.get(name) == default:
            given.pop(name)


def convert_group_dropout(conversion: Conversion, given: dict[str, object]) -> None:
    """Report that TRL's GRPO and RLOO keep the dropout of a model that has some, unless told otherwise."""
    if conversion.trainer != "grpo":
        return
    if (is_off := given.get("disable_dropout")) in (None, False):
        conversion.notes.append("dropout: there is none here; TRL's default keeps that of the model")
    if is_off in (None, False, True):
        given.pop("disable_dropout", None)


def convert_sampler(conversion: Conversion, given: dict[str, object]) -> None:
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


def convert_model(conversion: Conversion, given: dict[str, object]) -> None:
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


def convert_rloo(conversion: Conversion, arguments: Mapping[str, object]) -> None:
    """Set what makes GRPO the trainer of TRL's RLOOConfig."""
    for name, value in (("preset", "rloo"), ("level", "product"), ("norm", "sequence")):
        conversion.put(f"trainer.{name}", value)
    if arguments.get("normalize_advantages"):
        conversion.notes.append(
            "trainer.scale: batch divides by the deviation of the scores of a round, TRL by that of its advantages"
        )


def convert_reference_free(conversion: Conversion, given: dict[str, object], method: str) -> None:
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


SAMPLING = ("online_dpo", "distill_prompts")
"""Trainers that learn from prompts, and have no option for the number of rollouts."""


def convert_teacher(conversion: Conversion, given: dict[str, object]) -> None:
    """Convert the divergence of GKD, and the temperatures: TRL's divergence is at 1, and it samples at another."""
    if not conversion.has("trainer.teacher"):
        return
    _convert_divergence(conversion, given)
    conversion.put("trainer.temperature", 1.0)
    conversion.notes.append("trainer.temperature: is 1, that of TRL's divergence; its temperature is that of sampling")
    conversion.notes.append(
        "trainer.on_policy: is the share of the rows of every batch, TRL's lmbda that of the batches"
    )
    is_sequence = given.pop("seq_kd", None)
    if conversion.trainer == "distill_prompts":
        conversion.put("trainer.teacher_temperature", given.get("temperature") or 1.0)
        if not is_sequence:
            conversion.leave("seq_kd", is_sequence, "the teacher samples the outputs here; --trainer gkd takes samples")
    elif is_sequence:
        conversion.leave(
            "seq_kd", is_sequence, "name --trainer distill_prompts, whose other outputs the teacher samples"
        )
    _convert_dropout(conversion, given)


def convert_distillation(conversion: Conversion, given: dict[str, object]) -> None:
    """Convert the divergence of TRL's DistillationTrainer, whose policy samples all outputs.

    Its temperature is that of sampling and of the divergence, as here by default.
    """
    _convert_divergence(conversion, given)
    conversion.put("trainer.on_policy", 1.0)
    if not given.pop("disable_dropout", None):
        conversion.notes.append("dropout: there is none here; TRL's default keeps that of the model")


def _convert_divergence(conversion: Conversion, given: dict[str, Any]) -> None:
    beta = given.pop("beta", None)
    if beta is None:
        return
    kind = {0.0: "forward_kl", 1.0: "reverse_kl"}.get(beta, "jsd")
    conversion.put("trainer.divergence", kind)
    if kind == "jsd":
        conversion.put("trainer.beta", beta)


def convert_online(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the length and the weight of online DPO."""
    if conversion.trainer != "online_dpo":
        return
    beta = given.get("beta")
    if isinstance(beta, list | tuple):
        given.pop("beta")
        if len(beta) == 1:
            conversion.put("trainer.beta", beta[0])
        elif beta:
            conversion.leave("beta", beta, "there is one for all epochs")
    longest, new = given.pop("max_length", None), given.get("max_new_tokens")
    if longest is not None and new is not None and longest > new:
        conversion.put("data.max_prompt_tokens", longest - new)
        conversion.notes.append("data.max_prompt_tokens: is max_length - max_new_tokens")
    elif longest is not None:
        conversion.leave("max_length", longest, "it leaves no room for a prompt before max_new_tokens")
    conversion.notes.append("equal scores give no pair; TRL then takes the first answer as the chosen one")
    if given.get("missing_eos_penalty"):
        penalty = given.pop("missing_eos_penalty")
        conversion.leave("missing_eos_penalty", penalty, "there is none; a reward function can subtract it")
    _convert_dropout(conversion, given)


def _convert_dropout(conversion: Conversion, given: dict[str, object]) -> None:
    if given.pop("disable_dropout", None) is False:
        conversion.leave("disable_dropout", False, f"trainer {conversion.trainer!r} never uses dropout")


ONE_PROCESS = "batch sizes are those of one process: multiply them by the number of processes, which --processes N does"


def convert_batch(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the number of sequences of an optimizer step, and of a round of sampling."""
    size, parts = given.pop("per_device_train_batch_size"), given.pop("gradient_accumulation_steps")
    given["processes"] = processes = given.pop("num_processes", None) or 1
    if processes > 1:
        conversion.put("run.processes", processes)
        conversion.notes.append(f"batch sizes are those of {processes} processes together")
    else:
        conversion.notes.append(ONE_PROCESS)
    rounds = 1
    if conversion.has("trainer.num_generations") and conversion.has("trainer.rollouts"):
        rounds = _convert_generations(conversion, given, size, parts)
    else:
        conversion.put("trainer.batch_size", size * parts * processes)
    if conversion.has("trainer.rollouts") and conversion.has("trainer.batch_size"):
        rounds = given.pop("num_mini_batches", 1)
        conversion.put("trainer.rollouts", size * parts * rounds * processes)
        if (episodes := given.pop("total_episodes", None)) is not None:
            conversion.put("run.steps", math.ceil(episodes / (size * parts * rounds * processes)))
            given.pop("num_train_epochs")
        rounds *= given.get("num_ppo_epochs") or 1
    if parts > 1:
        conversion.put("trainer.micro_batch_size", size)
    given["updates"] = rounds


def _convert_generations(conversion: Conversion, given: dict[str, Any], size: int, parts: int) -> int:
    """Convert what TRL samples at once, and learns from `num_iterations` times; return a round's optimizer steps.

    TRL samples `pieces` micro-batches at once, makes `pieces * passes` backward passes over them, and an optimizer step
    after every `parts` of these.
    """
    processes, pieces = given["processes"], given.pop("steps_per_generation", None)
    whole, size = given.pop("generation_batch_size", None), size * processes  # TRL's whole is that of all processes
    whole = whole or size * (pieces or parts)
    pieces, passes = whole // size, given.pop("num_iterations", None) or 1
    minibatches, iterations, is_exact = max(pieces // parts, 1), passes, pieces % parts == 0
    if not pieces or whole % size:
        on = f", on {processes} processes" if processes > 1 else ""
        conversion.leave(
            "generation_batch_size", whole, f"it is no multiple of per_device_train_batch_size, {size // processes}{on}"
        )
    elif parts % pieces == 0:  # an optimizer step takes several samplings, or several passes over one
        repeats = parts // pieces
        whole *= max(repeats // passes, 1)
        iterations = max(passes // repeats, 1)
        is_exact = repeats % passes == 0 or passes % repeats == 0
    if pieces and not is_exact:
        how = f"steps of {parts} micro-batches do not divide {passes} passes over {pieces}; whole steps are written"
        conversion.leave("steps_per_generation", pieces, how)
    conversion.put("trainer.rollouts", whole)
    if isinstance(group := given.get("num_generations"), int) and whole % group:
        conversion.notes.append(
            f"trainer.rollouts: {whole} is no multiple of num_generations = {group}, so the file is for several "
            "processes: --processes N multiplies by their number"
        )
    conversion.put("trainer.minibatches", minibatches)
    if passes > 1:
        conversion.put("trainer.iterations", iterations)
    return minibatches * iterations


def convert_length(conversion: Conversion, given: dict[str, Any]) -> None:
    """Convert the number of steps, and when evaluations are made and checkpoints written."""
    rounds, steps, epochs = (
        given.pop("updates"),
        given.pop("max_steps", None) or -1,
        given.pop("num_train_epochs", None),
    )
    if steps > 0:
        conversion.put("run.steps", math.ceil(steps / rounds))
    elif epochs is not None:
        conversion.put("run.epochs", epochs)
    for name in ("warmup_ratio", "warmup_steps"):
        _warmup(conversion, name, given.pop(name, None) or 0, steps)
    for ours, name in (("eval", "eval"), ("checkpoint", "save")):
        _cadence(
            conversion, (ours, name), given.pop(f"{name}_strategy", None), given.pop(f"{name}_steps", None), rounds
        )
    if rounds > 1:
        conversion.notes.append(f"steps are rounds of {rounds} optimizer steps; counts of steps are divided by it")


def _warmup(conversion: Conversion, name: str, value: float, steps: int) -> None:
    if 0 < value < 1 and steps <= 0:
        conversion.leave(name, value, "set trainer.optimizer.warmup_steps to this share of all optimizer steps")
    elif value:
        conversion.put("trainer.optimizer.warmup_steps", math.ceil(value * steps) if value < 1 else int(value))


def _cadence(
    conversion: Conversion, names: tuple[str, str], strategy: object, every: float | None, rounds: int
) -> None:
    """Convert when evaluations are made, or checkpoints written: `names` are those of the section, here and in TRL."""
    section, theirs = names
    if str(strategy) == "no":
        conversion.put(f"{section}.at_end", False)
    elif str(strategy) == "epoch":
        conversion.leave(f"{theirs}_strategy", strategy, f"set {section}.every to the number of steps of an epoch")
    elif every and every < 1:
        conversion.leave(f"{theirs}_steps", every, f"set {section}.every to this share of all steps")
    elif every:
        conversion.put(f"{section}.every", math.ceil(every / rounds))
    elif strategy is not None:
        conversion.leave(f"{theirs}_strategy", strategy, f"set {section}.every by hand")
