"""Registration of DPO; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainers `dpo` and `online_dpo`."""
    register(
        "dpo",
        "rlcore_dpo.trainer:DPOTrainer",
        config="rlcore_dpo.config:DPOConfig",
        summary="DPO and its relatives: IPO, cDPO, EXO, APO, CPO, SimPO, ORPO, KTO",
    )
    register(
        "online_dpo",
        "rlcore_dpo.online_trainer:OnlineDPOTrainer",
        config="rlcore_dpo.online_config:OnlineDPOConfig",
        summary="Online DPO: pairs that the policy samples and reward functions rank",
    )
