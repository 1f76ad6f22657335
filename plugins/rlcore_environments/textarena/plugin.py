"""Registration of the environment `textarena`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_environments(register: Register) -> None:
    """Register the environment `textarena`."""
    register(
        "textarena",
        "rlcore_environments.textarena.environment:TextArena",
        config="rlcore_environments.textarena.config:TextArenaConfig",
        summary="games of TextArena, alone or against players that are functions",
    )
