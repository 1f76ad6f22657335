"""The reward `regex`: whether, or how often, a pattern occurs in an output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import regex

from rlcore.errors import ConfigError
from rlcore_rewards.config import RegexConfig
from rlcore_rewards.parts import Tally, after, refuse_misfit

FLAGS = {"ignore_case": regex.IGNORECASE, "multiline": regex.MULTILINE, "dot_all": regex.DOTALL}
"""Option → flag of the library."""


class Regex:
    """A reward function that searches outputs for a regular expression.

    Args:
        config: the options.

    Raises:
        ConfigError: the pattern is empty or invalid.
    """

    def __init__(self, config: RegexConfig) -> None:
        self.config = config
        flags = sum(flag for name, flag in FLAGS.items() if getattr(config, name))
        self._pattern = compile_pattern(config.pattern, "regex.pattern", flags)
        self._tally = Tally("regex")

    def __call__(self, outputs: Sequence[str]) -> list[float | None]:
        """Return a number in [0, 1] for each output, or None for one in which the search took too long."""
        refuse_misfit(outputs)
        found = [self._search(after(output, self.config.after)) for output in outputs]
        if None in found:
            what = f"searches took longer than regex.timeout_s = {self.config.timeout_s:g}, and gave no reward"
            self._tally.add(len(outputs), {what: found.count(None)})
        else:
            self._tally.add(len(outputs), {})
        return found

    def close(self) -> None:
        """Log the number of searches that took too long."""
        self._tally.close()

    def _search(self, text: str) -> float | None:
        mode, limit = self.config.mode, self.config.timeout_s
        try:
            if mode == "count":
                matches = self._pattern.finditer(text, timeout=limit)
                return sum(1 for _, _ in zip(range(self.config.most), matches, strict=False)) / self.config.most
            call = self._pattern.fullmatch if mode == "fullmatch" else self._pattern.search
            is_found = call(text, timeout=limit) is not None
        except TimeoutError:
            return None
        return float(is_found != (mode == "absent"))


def compile_pattern(pattern: str, option: str, flags: int = 0) -> Any:
    """Compile a regular expression.

    Args:
        pattern: the expression.
        option: the option that it comes from, for errors.
        flags: flags of the library.

    Raises:
        ConfigError: it is empty or invalid.
    """
    if not pattern:
        raise ConfigError(f"{option} is empty: set a regular expression")
    try:
        return regex.compile(pattern, flags)
    except (regex.error, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{option} = {pattern!r}: is no regular expression: {error}") from error
