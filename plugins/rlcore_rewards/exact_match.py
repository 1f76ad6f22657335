"""The reward `exact_match`: 1 if an output equals the text of a column after normalisation, else 0."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import ExactMatchConfig
from rlcore_rewards.parts import Tally, after, refuse_misfit, refuse_missing, signature
from rlcore_rewards.pattern import compile_pattern

SEARCH_S = 1.0
"""Seconds after which the search for the part to compare is given up."""


class ExactMatch:
    """A reward function that compares outputs with a column of the prompts as text.

    Args:
        config: the options.

    Raises:
        ConfigError: the pattern is invalid or has no group, or the column cannot be named.
    """

    def __init__(self, config: ExactMatchConfig) -> None:
        self.config = config
        self._extract = compile_pattern(config.extract, "exact_match.extract") if config.extract else None
        if self._extract is not None and self._extract.groups != 1:
            raise ConfigError(
                f"exact_match.extract = {config.extract!r}: has {self._extract.groups} groups; put what is compared in "
                "parentheses, and make other groups (?:...)"
            )
        self._tally = Tally("exact_match")
        self.__signature__ = signature("exact_match.column", [config.column])

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[Any]) -> list[float | None]:
        """Return 1 for each output that equals its row's text, or one of its texts, and None for a row without one.

        Raises:
            RewardError: a row has a mapping.
        """
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        column, counts = self.config.column, dict[str, int]()
        rewards: list[float | None] = []
        for i, (output, right) in enumerate(zip(outputs, columns[column], strict=True)):
            problem, reward = "", None
            if isinstance(right, Mapping):
                raise RewardError(f"sample {i}, column '{column}': {right!r:.80} is no text, and no list of texts")
            if right is None or not list(_texts(right)):
                problem = f"outputs have nothing in the column '{column}' to compare with, and get no reward"
            else:
                try:
                    reward = float(self._read(output) in {self._normal(str(each)) for each in _texts(right)})
                except TimeoutError:
                    problem = f"searches for exact_match.extract took longer than {SEARCH_S:g} s, and gave no reward"
            if problem:
                counts[problem] = counts.get(problem, 0) + 1
            rewards.append(reward)
        self._tally.add(len(outputs), counts)
        return rewards

    def close(self) -> None:
        """Log the numbers of outputs that got no reward."""
        self._tally.close()

    def _read(self, output: str) -> str | None:
        text = after(output, self.config.after)
        if self._extract is None:
            return self._normal(text)
        found = self._extract.findall(text, timeout=SEARCH_S)
        return self._normal(found[-1]) if found else None

    def _normal(self, text: str) -> str:
        config = self.config
        if config.unicode != "none":
            text = unicodedata.normalize(config.unicode, text)
        if config.ignore_case:
            text = text.casefold()
        if config.ignore_punctuation:
            text = "".join(each for each in text if not unicodedata.category(each).startswith("P"))
        if config.squeeze:
            text = re.sub(r"\s+", " ", text)
        return text.strip() if config.strip else text


def _texts(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)
