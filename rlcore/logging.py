"""Set how much rlcore says, in what form, and whether it shows progress bars, as `transformers.utils.logging` does.

What is set here holds from then on in this process and in those it starts, whatever the environment said before. Each
setting is kept in an environment variable, which does the same from outside:

    RLCORE_LOG_LEVEL     debug, info (the default), warning, error, critical, or a number
    RLCORE_LOG_FORMAT    plain (the default), explicit
    RLCORE_PROGRESS      1 (the default), 0
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Generic, TextIO, TypeVar

from rlcore.errors import ConfigError

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


def get_verbosity() -> int:
    """Return the lowest level that is said, as the standard library counts: 10 debug, 20 info, 30 warning, 40 error.

    Ranks other than 0 say errors only, whatever it is.
    """
    return heeded(LEVEL)


def set_verbosity(level: int | str) -> None:
    """Say events of this level and above.

    Args:
        level: debug, info, warning, error or critical, or a number, such as `logging.INFO` of the standard library.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(level, bool) or not isinstance(level, int | str):
        raise ConfigError(f"verbosity = {level!r} ({type(level).__name__}): must be the name or the number of a level")
    word = str(level).strip().lower()
    parse_level(word, "verbosity")
    LEVEL.write(word)


def set_verbosity_debug() -> None:
    """Say everything."""
    set_verbosity("debug")


def set_verbosity_info() -> None:
    """Say what a user may want to know: the default."""
    set_verbosity("info")


def set_verbosity_warning() -> None:
    """Say what a user should know, and errors."""
    set_verbosity("warning")


def set_verbosity_error() -> None:
    """Say errors only."""
    set_verbosity("error")


def enable_explicit_format() -> None:
    """Begin every event with date and time, the file and line that said it, and the rank."""
    FORMAT.write("explicit")


def reset_format() -> None:
    """Go back to the plain format: time, level, event, and its fields."""
    FORMAT.write("plain")


def enable_progress_bar() -> None:
    """Show progress bars on a terminal, but where the option `progress` of the console logger says no."""
    PROGRESS.write("1")


def disable_progress_bar() -> None:
    """Show no progress bar, whatever the console logger's option says; a bar that is shown goes with the next step."""
    PROGRESS.write("0")


def is_progress_bar_enabled() -> bool:
    """Tell whether a progress bar may be shown."""
    return heeded(PROGRESS)


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
        # and would take rlcore.loggers for a part of rlcore.logging.
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
            get_logger("rlcore.logging").warning(str(error))
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


LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""The standard library's numbers; its module is left out, as is difflib, for the command line reads this one first."""
FORMATS = ("plain", "explicit")
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


class Switch(Generic[T]):
    """Stand for one environment variable.

    Args:
        name: of the variable.
        default: its value where it is not set, or empty.
        parse: turns a word, and what asks for it, into the value; ConfigError for a word that means nothing.
    """

    def __init__(self, name: str, default: T, parse: Callable[[str, str], T]) -> None:
        self.name, self.default, self.parse = name, default, parse

    @property
    def word(self) -> str:
        """Return what the environment says."""
        return os.environ.get(self.name, "").strip().lower()

    def read(self) -> T:
        """Return the value that holds.

        Raises:
            ConfigError: the environment says what means nothing.
        """
        return self.parse(self.word, self.name) if self.word else self.default

    def write(self, word: str) -> None:
        """Have `word` hold from here on, in this process and those it starts."""
        os.environ[self.name] = word


def parse_level(word: str, where: str) -> int:
    """Turn the name of a level, or its number, into the number."""
    if word in LEVELS:
        return LEVELS[word]
    if word.isdecimal():
        return int(word)
    raise _no_choice(word, where, LEVELS, "or a number, as 10 for debug and 40 for error")


def parse_format(word: str, where: str) -> str:
    """Return the name of a format if it is one."""
    if word not in FORMATS:
        raise _no_choice(word, where, FORMATS)
    return word


def parse_truth(word: str, where: str) -> bool:
    """Turn a word for yes or no into the truth."""
    if word not in _WORDS:
        raise _no_choice(word, where, _WORDS)
    return _WORDS[word]


LEVEL = Switch("RLCORE_LOG_LEVEL", LEVELS["info"], parse_level)
FORMAT = Switch("RLCORE_LOG_FORMAT", "plain", parse_format)
PROGRESS = Switch("RLCORE_PROGRESS", True, parse_truth)


def check_environment() -> None:
    """Refuse to begin where one of the variables says what means nothing.

    Raises:
        ConfigError: its name, its value, and what it may be.
    """
    for switch in (LEVEL, FORMAT, PROGRESS):
        switch.read()


def _no_choice(word: str, where: str, choices: Iterable[str], more: str = "") -> ConfigError:
    import difflib

    near = difflib.get_close_matches(word, choices, n=1)
    listed = ", ".join(choices) + (f", {more}" if more else "")
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return ConfigError(f"{where} = {word!r}: must be one of {listed}{hint}")
