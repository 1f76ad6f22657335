"""Registration of the logger `tensorboard`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the logger `tensorboard`."""
    register(
        "tensorboard",
        "rlcore_tensorboard.logger:TensorBoardLogger",
        config="rlcore_tensorboard.config:TensorBoardConfig",
        summary="TensorBoard event files",
    )
