"""Every trainer with small options, as the subject of a law."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from small_teacher import TEACHER

from rlcore_testing.cases import cases
from rlcore_testing.law import Subject
from rlcore_testing.laws.trainer_options import an_accepted_change_has_its_effect

DISTILL = {"teacher": TEACHER, "batch_size": 4, "on_policy": 0.5}
TRAINERS: dict[tuple[str, str], dict[str, Any]] = {
    ("rlcore-sft", "sft"): {"batch_size": 4},
    ("rlcore-ppo", "ppo"): {"rollouts": 8, "batch_size": 4, "epochs": 1, "kl_coef": 0.1, "kl_target": 0.5},
    ("rlcore-ilql", "ilql"): {"batch_size": 4},
    ("rlcore-grpo", "grpo"): {"rollouts": 8, "num_generations": 2},
    ("rlcore-dpo", "dpo"): {"batch_size": 4},
    ("rlcore-dpo", "online_dpo"): {"batch_size": 4},
    ("rlcore-distill", "distill"): DISTILL,
    ("rlcore-distill", "distill_prompts"): DISTILL,
    ("rlcore-reinforce", "reinforce"): {"rollouts": 8},
    ("rlcore-rft", "rft"): {"generations": 8, "improve_steps": 2, "history": 2, "batch_size": 5},
    ("rlcore-reward", "reward"): {"batch_size": 4},
    ("rlcore-reward", "process_reward"): {"batch_size": 4},
    ("rlcore-ddpo", "ddpo"): {"rollouts": 6, "batch_size": 3, "steps": 2, "clip_range": 0.05},
}  # fmt: skip
"""Dist and trainer → small options."""


def subject_of(dist: str, trainer: str, options: Mapping[str, Any]) -> Subject:
    """Return a trainer with these options as the subject of laws."""
    found = cases(dist, options={trainer: options})
    return next(
        each.subject for each in found
        if each.law is an_accepted_change_has_its_effect and each.subject.it.name == trainer
    )  # fmt: skip
