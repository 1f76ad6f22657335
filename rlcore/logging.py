"""Set how much rlcore says, in what form, and whether it shows progress bars, as `transformers.utils.logging` does.

What is set here holds from then on in this process and in those it starts, whatever the environment said before. Each
setting is kept in an environment variable, which does the same from outside:

    RLCORE_LOG_LEVEL     debug, info (the default), warning, error, critical, or a number
    RLCORE_LOG_FORMAT    plain (the default), explicit
    RLCORE_PROGRESS      1 (the default), 0
"""

from __future__ import annotations

from rlcore.errors import ConfigError
from rlcore.log import get_logger, heeded
from rlcore.verbosity import FORMAT, LEVEL, PROGRESS, parse_level

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
