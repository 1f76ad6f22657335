"""Registration of distillation; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainers `distill` and `distill_prompts`."""
    register(
        "distill",
        "rlcore_distill.trainer:DistillTrainer",
        config="rlcore_distill.config:DistillConfig",
        summary="Generalised knowledge distillation (GKD) on demonstrations and the policy's own outputs",
    )
    register(
        "distill_prompts",
        "rlcore_distill.trainer:PromptDistillTrainer",
        config="rlcore_distill.config:PromptDistillConfig",
        summary="Distillation on prompts: on-policy, or sequence-level on the teacher's outputs",
    )


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward `teacher`."""
    register(
        "teacher",
        "rlcore_distill.teacher_reward:TeacherReward",
        config="rlcore_distill.config:TeacherRewardConfig",
        summary="the log-prob that a teacher gives each sampled token: on-policy distillation with ppo and grpo",
    )
