"""Registration of the logger `trackio`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the logger `trackio`."""
    register(
        "trackio",
        "rlcore_trackio.logger:TrackioLogger",
        config="rlcore_trackio.config:TrackioConfig",
        summary="metrics, completions and configuration at Trackio",
    )
