"""Say what happens, as structlog events on stderr; `RLCORE_LOG_LEVEL` sets how much.

The host program's logging is left alone: nothing is configured globally, and a program that has configured structlog
gets our events through its own processors.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
from typing import Any, TextIO

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
DEFAULT_LEVEL = "info"

_misspelt: set[str] = set()


class Log:
    """Name the part of the program that speaks, with fields that go with all it says.

    structlog is imported, and the level and stderr looked up, when something is said and not before.
    """

    def __init__(self, name: str, fields: dict[str, Any] | None = None) -> None:
        self.name = name
        self.fields = fields or {}

    def bind(self, **fields: Any) -> Log:
        """Return a log that adds `fields` to every event."""
        return Log(self.name, {**self.fields, **fields})

    def debug(self, event: str, **fields: Any) -> None:
        """Tell what only a developer wants to know."""
        self._say("debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Tell what a user may want to know."""
        self._say("info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Tell what a user should know, though the run goes on."""
        self._say("warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Tell what has failed; on every rank. `exc_info=True` adds the traceback."""
        self._say("error", event, fields)

    def _say(self, method: str, event: str, fields: dict[str, Any]) -> None:
        if LEVELS[method] >= current_level():
            getattr(_structlog(self.name), method)(event, **{**self.fields, **fields})


def get_logger(name: str) -> Log:
    """Return the log of the part of the program called `name`; nothing is imported or set up by this."""
    return Log(name)


def current_level() -> int:
    """Return the lowest level that is said, from `RLCORE_LOG_LEVEL`; on ranks other than 0, errors only."""
    word = os.environ.get("RLCORE_LOG_LEVEL", "").strip().lower() or DEFAULT_LEVEL
    level = LEVELS.get(word)
    if level is None:
        level = LEVELS[DEFAULT_LEVEL]
        if word not in _misspelt:
            _misspelt.add(word)
            near = difflib.get_close_matches(word, LEVELS, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"it may be {', '.join(LEVELS)}"
            get_logger("rlcore.log").warning(f"RLCORE_LOG_LEVEL is '{word}', which is no level: {hint}")
    return level if os.environ.get("RANK", "0") in {"", "0"} else max(level, logging.ERROR)


def _structlog(name: str) -> Any:
    import structlog

    if structlog.is_configured():
        return structlog.get_logger().bind(logger=name)
    stream = sys.stderr
    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False),
            structlog.dev.ConsoleRenderer(
                colors=_wants_colours(stream), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.BoundLogger,
    ).bind(logger=name)


def _wants_colours(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and stream.isatty()
