"""Registration of SFT; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `sft`."""
    register(
        "sft",
        "rlcore_sft.trainer:SFTTrainer",
        config="rlcore_sft.config:SFTConfig",
        summary="Supervised fine-tuning",
    )
