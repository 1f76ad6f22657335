"""Registration of GRPO; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `grpo`."""
    register(
        "grpo",
        "rlcore_grpo.trainer:GRPOTrainer",
        config="rlcore_grpo.config:GRPOConfig",
        summary="Group-relative policy optimisation: GRPO, Dr. GRPO, DAPO, GSPO, CISPO, RLOO",
    )
