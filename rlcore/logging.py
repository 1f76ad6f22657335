"""Log events to stderr, with a verbosity, a format and progress bars set as in `transformers.utils.logging`.

Each setting is an environment variable, so that it also holds in processes that this one starts; the functions below
override what was set outside.

    RLCORE_LOG_LEVEL     debug, info (the default), warning, error, critical, or a number
    RLCORE_LOG_FORMAT    plain (the default), explicit
    RLCORE_PROGRESS      1 (the default), 0
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TextIO, TypeVar

from rlcore.errors import ConfigError
from rlcore.safe_text import hide_logins, redact, visible

__all__ = [
    "disable_progress_bar",
    "enable_explicit_format",
    "enable_progress_bar",
    "get_logger",
    "get_verbosity",
    "is_progress_bar_enabled",
    "reset_format",
    "set_verbosity",
    "set_verbosity_debug",
    "set_verbosity_error",
    "set_verbosity_info",
    "set_verbosity_warning",
]

T = TypeVar("T")

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""The numbers of the standard library's `logging`, which is not imported because the command line imports this module
at its start."""
FORMATS = ("plain", "explicit")
_TRUTHS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class EnvironmentVariable(Generic[T]):
    """A setting that is kept in an environment variable, as one of a few words.

    Args:
        name: name of the variable.
        default: its word if the variable is unset or empty.
        choices: word → value.
        number: returns the value of a number, where numbers are allowed beside the words.
    """

    def __init__(
        self, name: str, default: str, choices: Mapping[str, T], number: Callable[[str], T] | None = None
    ) -> None:
        self.name, self.default, self.choices, self.number = name, default, choices, number
        self._warned: set[str] = set()

    @property
    def word(self) -> str:
        """The variable's text, in lower case; that of the default if unset."""
        return os.environ.get(self.name, "").strip().lower() or self.default

    def check(self, word: str | None = None, where: str = "") -> T:
        """Return the value of the variable, or of `word`.

        Raises:
            ConfigError: it has none; `where`, or the name of the variable, begins the message.
        """
        word = self.word if word is None else word
        if self.number is not None and word.isdecimal():
            return self.number(word)
        if word in self.choices:
            return self.choices[word]
        import difflib

        near = difflib.get_close_matches(word, self.choices, n=1)
        alternative = "" if self.number is None else ", or a number, as 10 for debug and 40 for error"
        hint = f"; did you mean '{near[0]}'?" if near else ""
        choices = ", ".join(self.choices)
        raise ConfigError(f"{where or self.name} = {word!r}: must be one of {choices}{alternative}{hint}")

    def read(self) -> T:
        """Return the value, or warn once and return the default if it is invalid: a run in progress must not fail."""
        try:
            return self.check()
        except ConfigError as error:
            if self.word not in self._warned:
                self._warned.add(self.word)
                get_logger("rlcore.logging").warning(str(error))
            return self.choices[self.default]

    def write(self, word: str) -> None:
        """Set the variable for this process and those it starts."""
        os.environ[self.name] = word


LEVEL = EnvironmentVariable("RLCORE_LOG_LEVEL", "info", LEVELS, number=int)
FORMAT = EnvironmentVariable("RLCORE_LOG_FORMAT", "plain", {name: name for name in FORMATS})
PROGRESS = EnvironmentVariable("RLCORE_PROGRESS", "1", _TRUTHS)


def check_environment() -> None:
    """Check the three variables.

    Raises:
        ConfigError: one has an invalid value; the message names the variable, the value and the valid ones.
    """
    for variable in (LEVEL, FORMAT, PROGRESS):
        variable.check()


def get_verbosity() -> int:
    """Return the lowest level that is logged, numbered as in `logging`: 10 debug, 20 info, 30 warning, 40 error.

    Ranks other than 0 log errors only, at any verbosity.
    """
    return LEVEL.read()


def set_verbosity(level: int | str) -> None:
    """Log events of this level and above.

    Args:
        level: debug, info, warning, error or critical, or a number, such as `logging.INFO` of the standard library.

    Raises:
        ConfigError: `level` is none of these.
    """
    if isinstance(level, bool) or not isinstance(level, int | str):
        raise ConfigError(f"verbosity = {level!r} ({type(level).__name__}): must be the name or the number of a level")
    word = str(level).strip().lower()
    LEVEL.check(word, "verbosity")
    LEVEL.write(word)


def set_verbosity_debug() -> None:
    """Log all events."""
    set_verbosity("debug")


def set_verbosity_info() -> None:
    """Log information, warnings and errors: the default."""
    set_verbosity("info")


def set_verbosity_warning() -> None:
    """Log warnings and errors."""
    set_verbosity("warning")


def set_verbosity_error() -> None:
    """Log errors only."""
    set_verbosity("error")


def enable_explicit_format() -> None:
    """Begin every event with the date and time, the file and line of the call, and the rank."""
    FORMAT.write("explicit")


def reset_format() -> None:
    """Restore the plain format: time, level, event and its fields."""
    FORMAT.write("plain")


def enable_progress_bar() -> None:
    """Show progress bars on a terminal, unless the console logger's option `progress` is false."""
    PROGRESS.write("1")


def disable_progress_bar() -> None:
    """Hide progress bars, whatever the console logger's options; a visible bar disappears at the next step."""
    PROGRESS.write("0")


def is_progress_bar_enabled() -> bool:
    """Return whether progress bars may be shown."""
    return PROGRESS.read()


class Log:
    """The log of one part of the program, with fields that are added to each of its events.

    structlog is imported, and level, format and stderr are looked up, when an event is logged.
    """

    def __init__(self, name: str, fields: dict[str, Any] | None = None) -> None:
        self.name = name
        self.fields = fields or {}

    def bind(self, **fields: object) -> Log:
        """Return a log that adds `fields` to every event."""
        return Log(self.name, {**self.fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """Log an event for developers."""
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        """Log an event that may interest users."""
        self._log("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """Log a problem that does not end the run."""
        self._log("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        """Log a failure, on every rank. `exc_info=True` adds the traceback."""
        self._log("error", event, fields)

    def _log(self, method: str, event: str, fields: dict[str, Any]) -> None:
        rank = os.environ.get("RANK") or "0"
        if LEVELS[method] < (LEVEL.read() if rank == "0" else max(LEVEL.read(), LEVELS["error"])):
            return
        site: dict[str, object] = {}
        if FORMAT.read() == "explicit":
            # Two frames up is the caller of info() and the like. structlog's own search ignores modules by prefix, so
            # that ignoring rlcore.logging would ignore rlcore.loggers as well.
            frame = sys._getframe(2)  # noqa: SLF001  as logging does
            site = {"pathname": frame.f_code.co_filename, "lineno": frame.f_lineno, "rank": rank}
        with suppress(OSError):  # for example, stderr is a file on a full disk; that must not end a run
            getattr(_structlog(self.name, site), method)(
                hide_logins(event), **redact({**self.fields, **fields}, hide_logins)
            )


def get_logger(name: str) -> Log:
    """Return the log of the part of the program called `name`; this imports and configures nothing."""
    return Log(name)


def _structlog(name: str, site: dict[str, Any]) -> Any:
    """Return a structlog logger: the host program's if it configured structlog, else one that prints to stderr."""
    import random

    before = random.getstate()
    import structlog  # imports rich, which draws from the global generator: logging must not change what a run draws

    random.setstate(before)
    if structlog.is_configured():
        return structlog.get_logger().bind(logger=name, **site)
    stream = sys.stderr
    colors = not os.environ.get("NO_COLOR") and stream.isatty()

    def put_site_first(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        path = "/".join(Path(site["pathname"]).parts[-2:])  # with its folder, since many packages have a trainer.py
        event["timestamp"] += f" {path}:{site['lineno']} rank {site['rank']}"
        return event

    def escape(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return {key: visible(value) if isinstance(value, str) else value for key, value in event.items()}

    def write_traceback(out: TextIO, error: Any) -> None:
        text = io.StringIO()
        structlog.dev.plain_traceback(text, error)
        out.write(visible(hide_logins(text.getvalue())))

    return structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S.%f" if site else "%H:%M:%S", utc=False),
            *([put_site_first] if site else []),
            escape,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=write_traceback),
        ],
        wrapper_class=structlog.BoundLogger,
    ).bind(logger=name)
