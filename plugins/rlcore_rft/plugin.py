"""Registration of RFT; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `rft`."""
    register(
        "rft",
        "rlcore_rft.trainer:RFTTrainer",
        config="rlcore_rft.config:RFTConfig",
        summary="Reward-ranked fine-tuning, as ReST",
    )
