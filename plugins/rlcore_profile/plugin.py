"""Record a run's profile through hooks, where `run.profile` is set; light, for every command imports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rlcore import hookimpl

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.protocols import RunView
    from rlcore.settings import TrainConfig
    from rlcore_profile.session import Session

_sessions: dict[RunView, Session] = {}
"""The runs of this process that are being recorded; a reward function may start one within another."""


@hookimpl
def wrap_component(component: Component[Any], config: TrainConfig | None) -> Callable[[Any], Any] | None:
    """Wrap the policy of a run that is to be profiled, so that what it scores is timed."""
    if component.kind != "architectures" or config is None or not config.run.profile:
        return None
    from rlcore_profile.timed_policy import TimedPolicy

    return TimedPolicy


@hookimpl(tryfirst=True)
def on_run_start(run: RunView) -> None:
    """Begin to record on process 0, before the other observers are called."""
    if run.config.run.profile and run.ranks.is_main:
        from rlcore_profile.session import Session

        _sessions[run] = Session(run)


@hookimpl(trylast=True)
def on_run_end(run: RunView) -> None:
    """Write the profile, however the run ended, after the other observers were called."""
    session = _sessions.pop(run, None)
    if session is not None:
        session.end(run.step)
