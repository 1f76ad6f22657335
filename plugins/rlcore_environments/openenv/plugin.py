"""Registration of the environment `openenv`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_environments(register: Register) -> None:
    """Register the environment `openenv`."""
    register(
        "openenv",
        "rlcore_environments.openenv.config:make_factory",
        config="rlcore_environments.openenv.config:OpenEnvConfig",
        summary="environments on OpenEnv servers",
    )
