"""Registration of DPO; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `dpo`."""
    register(
        "dpo",
        "rlcore_dpo.trainer:DPOTrainer",
        config="rlcore_dpo.config:DPOConfig",
        summary="DPO and its relatives: IPO, cDPO, EXO, APO, CPO, SimPO, ORPO, KTO",
    )
