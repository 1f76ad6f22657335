"""Registration of the environment `gymnasium`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_environments(register: Register) -> None:
    """Register the environment `gymnasium`."""
    register(
        "gymnasium",
        "rlcore_environments.gymnasium.environment:Gymnasium",
        config="rlcore_environments.gymnasium.config:GymnasiumConfig",
        summary="environments of Gymnasium, with observations and actions as texts",
    )
