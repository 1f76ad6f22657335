"""Registration of the command `sweep`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_commands(register: Register) -> None:
    """Register the command `sweep`."""
    register(
        "sweep",
        "rlcore_tools.sweep.sweep_command:command",
        summary="search values of options that give a run the best metric",
    )
