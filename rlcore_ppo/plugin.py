"""Registration of PPO; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `ppo`."""
    register(
        "ppo",
        "rlcore_ppo.trainer:PPOTrainer",
        config="rlcore_ppo.config:PPOConfig",
        summary="Proximal policy optimisation",
    )
