"""Registration of the commands, of the report at the end of every run, and of the output of runs in notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.protocols import RunView
    from rlcore_report.health.step_size import StepSizeWatch

_watches: dict[RunView, StepSizeWatch] = {}
"""The runs of this process that are going on; there are several if a reward function starts a run."""


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
        "rlcore_report.report_command:compare",
        summary="print how two runs differ: options, metrics, verdicts",
    )
    register(
        "rollouts",
        "rlcore_report.rollouts:command",
        summary="print the rollouts or completions of a run",
    )


@hookimpl
def on_run_start(run: RunView) -> None:
    """Begin to watch the size of the steps, on process 0."""
    if run.ranks.is_main:
        from rlcore_report.health.step_size import StepSizeWatch

        _watches[run] = StepSizeWatch(run.total_steps)


@hookimpl
def on_step(run: RunView, metrics: Mapping[str, float]) -> None:
    """Warn, once in a run, if its steps are too small to arrive within its budget; record its device."""
    watch = _watches.get(run)
    if watch is not None and not watch.is_recorded:
        from rlcore_report.run_record import record_machine

        watch.is_recorded = True
        record_machine(run)
    verdict = watch.step(run.step, metrics) if watch is not None else None
    if verdict is not None:
        from rlcore_report.health.step_size import warn

        warn(run, verdict)


@hookimpl
def on_evaluate(run: RunView, metrics: Mapping[str, float]) -> None:
    """Add the evaluation to what is watched."""
    watch = _watches.get(run)
    if watch is not None:
        watch.add(run.step, metrics)


@hookimpl
def on_run_end(run: RunView) -> None:
    """End the watch."""
    _watches.pop(run, None)


@hookimpl
def on_run_closed(run: RunView) -> None:
    """Write `report.html`, unless `run.report` is off."""
    if run.ranks.is_main and run.config.run.report and run.dir.is_dir():
        from rlcore_report.html_page import record_report

        record_report(run.dir)


@hookimpl
def wrap_component(component: Component[object]) -> Callable[[Any], object] | None:
    """Replace the plain console: by one with colours and tables, or in a notebook by one output."""
    if component.kind != "loggers" or component.qualified != "rlcore:console":
        return None
    if "IPython" in sys.modules:  # it is in every notebook, so elsewhere it need not be imported to find out
        from rlcore_report.notebook import in_notebook, is_notebook

        if is_notebook():
            return in_notebook
    from rlcore_report.console import on_rich

    return on_rich
