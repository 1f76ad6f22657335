"""Registration of the logger `wandb`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the logger `wandb`."""
    register(
        "wandb",
        "rlcore_wandb.logger:WandbLogger",
        config="rlcore_wandb.config:WandbConfig",
        summary="metrics, completions and configuration at Weights & Biases",
    )
