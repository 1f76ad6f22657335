"""Registration of REINFORCE; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `reinforce`."""
    register(
        "reinforce",
        "rlcore_reinforce.trainer:ReinforceTrainer",
        config="rlcore_reinforce.config:ReinforceConfig",
        summary="REINFORCE with a leave-one-out baseline",
    )
