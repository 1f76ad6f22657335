"""Hooks that record a run's profile if `run.profile` is set; light, since every command imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlcore import hookimpl
from rlcore.hookspecs import RegisterServices

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.protocols import RunView
    from rlcore.settings import TrainConfig
    from rlcore_report.profile.session import Session

_sessions: dict[RunView, Session] = {}
"""The runs that this process is recording; there are several if a reward function starts a run."""


@hookimpl
def register_services(register: RegisterServices) -> None:
    """State the option that this plugin implements."""
    register(options=["run.profile"])


@hookimpl
def wrap_component(component: Component[object], config: TrainConfig | None) -> Callable[[Any], object] | None:
    """Wrap the policy of a profiled run in `TimedPolicy`."""
    if component.kind != "architectures" or config is None or not config.run.profile:
        return None
    from rlcore_report.profile.session import TimedPolicy

    return TimedPolicy


@hookimpl(tryfirst=True)
def on_run_start(run: RunView) -> None:
    """Start recording on process 0, before other observers are called."""
    if run.config.run.profile and run.ranks.is_main:
        from rlcore_report.profile.session import Session

        _sessions[run] = Session(run)


@hookimpl(trylast=True)
def on_run_end(run: RunView) -> None:
    """Write the profile after other observers were called, also if the run failed."""
    session = _sessions.pop(run, None)
    if session is not None:
        session.end(run.step)
