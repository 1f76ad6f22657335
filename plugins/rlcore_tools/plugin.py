"""Registration of the commands and of the observer of first rows; light, since `rlcore --help` imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.protocols import RunView


@hookimpl
def register_commands(register: Register) -> None:
    """Register the commands `preview`, `convert`, `doctor` and `new-plugin`."""
    register(
        "preview",
        "rlcore_tools.preview_command:command",
        summary="show the rows of a configuration as tokens: what is trained, sampled, dropped and truncated",
    )
    register(
        "convert",
        "rlcore_tools.conversion.convert_command:command",
        summary="turn a configuration of trlX or arguments of TRL into a configuration file",
    )
    register(
        "doctor",
        "rlcore_tools.doctor.doctor_command:command",
        summary="print versions, machine, plugins and problems for a bug report",
    )
    register(
        "new-plugin",
        "rlcore_tools.new_plugin.new_plugin_command:command",
        summary="create a working package as a starting point for your own plugin",
    )


@hookimpl
def on_run_start(run: RunView) -> None:
    """Write the first rows of the run to its report, and log them at the level debug."""
    if run.ranks.is_main:
        from rlcore_tools.first_rows import record_first_rows

        record_first_rows(run)
