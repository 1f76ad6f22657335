"""Registration of the environment `verifiers`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_environments(register: Register) -> None:
    """Register the environment `verifiers`."""
    register(
        "verifiers",
        "rlcore_environments.verifiers.config:make_factory",
        config="rlcore_environments.verifiers.config:VerifiersConfig",
        summary="tasks of verifiers, each answered in one turn",
    )
