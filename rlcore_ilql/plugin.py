"""Registration of ILQL; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `ilql`."""
    register(
        "ilql",
        "rlcore_ilql.trainer:ILQLTrainer",
        config="rlcore_ilql.config:ILQLConfig",
        summary="Implicit language Q-learning",
    )
