"""Arguments of TRL's GKDConfig, DistillationConfig and OnlineDPOConfig whose meaning depends on others."""

from __future__ import annotations

from typing import Any

from rlcore_tools.conversion.conversion import Conversion

SAMPLING = ("online_dpo", "distill_prompts")
"""Trainers that learn from prompts, and have no option for the number of rollouts."""


def convert_teacher(conversion: Conversion, given: dict[str, Any]) -> None:
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


def convert_distillation(conversion: Conversion, given: dict[str, Any]) -> None:
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


def _convert_dropout(conversion: Conversion, given: dict[str, Any]) -> None:
    if given.pop("disable_dropout", None) is False:
        conversion.leave("disable_dropout", False, f"trainer {conversion.trainer!r} never uses dropout")
