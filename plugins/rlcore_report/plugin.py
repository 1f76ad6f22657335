"""Registration of the commands, of the report at the end of every run, and of the output of runs in notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.protocols import RunView


@hookimpl
def register_commands(register: Register) -> None:
    """Register the commands `report`, `compare` and `rollouts`."""
    register(
        "report",
        "rlcore_report.report_command:command",
        summary="write curves, completions and health verdicts of runs as a page",
    )
    register(
        "compare",
        "rlcore_report.compare_command:command",
        summary="print how two runs differ: options, metrics, verdicts",
    )
    register(
        "rollouts",
        "rlcore_report.rollouts.rollouts_command:command",
        summary="print the rollouts or completions of a run",
    )


@hookimpl
def on_run_closed(run: RunView) -> None:
    """Write `report.html`, unless `run.report` is off."""
    if run.ranks.is_main and run.config.run.report and run.dir.is_dir():
        from rlcore_report.html_page import record_report

        record_report(run.dir)


@hookimpl
def wrap_component(component: Component[Any]) -> Callable[[Any], Any] | None:
    """Replace the plain console: by one with colours and tables, or in a notebook by one output."""
    if component.kind != "loggers" or component.qualified != "rlcore:console":
        return None
    if "IPython" in sys.modules:  # it is in every notebook, so elsewhere it need not be imported to find out
        from rlcore_report.notebook import in_notebook, is_notebook

        if is_notebook():
            return in_notebook
    from rlcore_report.console import on_rich

    return on_rich
