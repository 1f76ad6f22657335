"""Registration of the environment `reasoning_gym`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_environments(register: Register) -> None:
    """Register the environment `reasoning_gym`."""
    register(
        "reasoning_gym",
        "rlcore_environments.reasoning_gym.environment:ReasoningGym",
        config="rlcore_environments.reasoning_gym.config:ReasoningGymConfig",
        summary="tasks of reasoning-gym: families, mixtures and levels of difficulty",
    )
