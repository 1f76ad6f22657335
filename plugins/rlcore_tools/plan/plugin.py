"""Registration of the command `rlcore plan`; light, since `rlcore --help` imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `plan`."""
    register(
        "plan",
        "rlcore_tools.plan.command:command",
        summary="estimate the memory that a run takes on each device, and options that reduce it",
    )
