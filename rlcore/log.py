"""Say what happens, as structlog events on stderr; `rlcore.logging` and three environment variables set how much.

The host program's logging is left alone: nothing is configured globally, and a program that has configured structlog
gets our events through its own processors.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO, TypeVar

from rlcore.errors import ConfigError
from rlcore.verbosity import FORMAT, LEVEL, LEVELS, Switch

T = TypeVar("T")

_misspelt: set[tuple[str, str]] = set()


class Log:
    """Name the part of the program that speaks, with fields that go with all it says.

    structlog is imported, and level, format and stderr looked up, when something is said and not before.
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
        if LEVELS[method] < current_level():
            return
        # The caller of info() and its like is two frames up; structlog's own search knows modules by their prefix only,
        # and would take rlcore.loggers for a part of rlcore.log.
        site = _call_site(sys._getframe(2)) if heeded(FORMAT) == "explicit" else {}  # noqa: SLF001  as logging does
        with suppress(OSError):  # stderr may lie on a disk that is full, which is no reason to end a run
            getattr(_structlog(self.name, site), method)(event, **{**self.fields, **fields})


def get_logger(name: str) -> Log:
    """Return the log of the part of the program called `name`; nothing is imported or set up by this."""
    return Log(name)


def current_level() -> int:
    """Return the lowest level that is said here: what is set, and on ranks other than 0 errors only."""
    level = heeded(LEVEL)
    return level if _rank() == "0" else max(level, logging.ERROR)


def heeded(switch: Switch[T]) -> T:
    """Return what a switch says; where that means nothing it is told once, for what is in progress must go on."""
    try:
        return switch.read()
    except ConfigError as error:
        if (switch.name, switch.word) not in _misspelt:
            _misspelt.add((switch.name, switch.word))
            get_logger("rlcore.log").warning(str(error))
        return switch.default


def _rank() -> str:
    return os.environ.get("RANK", "") or "0"


def _call_site(frame: FrameType) -> dict[str, Any]:
    return {"pathname": frame.f_code.co_filename, "lineno": frame.f_lineno, "rank": _rank()}


def _structlog(name: str, site: dict[str, Any]) -> Any:
    import structlog

    if structlog.is_configured():
        return structlog.get_logger().bind(logger=name, **site)
    stream = sys.stderr

    def put_site_first(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        place = "/".join(Path(site["pathname"]).parts[-2:])  # there is a trainer.py in more than one package
        event["timestamp"] += f" {place}:{site['lineno']} rank {site['rank']}"
        return event

    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f" if site else "%H:%M:%S", utc=False),
            *([put_site_first] if site else []),
            structlog.dev.ConsoleRenderer(
                colors=_wants_colours(stream), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        wrapper_class=structlog.BoundLogger,
    ).bind(logger=name)


def _wants_colours(stream: TextIO) -> bool:
    return not os.environ.get("NO_COLOR") and stream.isatty()
