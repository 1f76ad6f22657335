"""Know how much is said and in what form: three environment variables, which `rlcore.logging` sets.

The environment is the only place where this is kept. So what a program sets takes the place of what it was started
with, and holds in every process that it starts, forked or spawned.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rlcore.errors import ConfigError

T = TypeVar("T")

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
