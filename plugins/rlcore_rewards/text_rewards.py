"""Rewards of texts: `exact_match` with a column, `regex`, `length` and `repetition`."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import regex

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import ExactMatchConfig, LengthConfig, RegexConfig, RepetitionConfig
from rlcore_rewards.parts import Tally, after, refuse_misfit, refuse_missing, signature, units

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

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[object]) -> list[float | None]:
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


def _texts(value: object) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else (value,)


class Length:
    """A reward function of the length L of outputs: a limit or a target.

    cap:     r = 0                            for L <= cap
             r = -min(1, (L - cap) / slack)   for L > cap; -1 if slack is 0
    target:  r = max(0, 1 - |L - target| / slack);  1 at the target and 0 elsewhere if slack is 0

    Args:
        config: the options.

    Raises:
        ConfigError: neither a limit nor a target is set, or both are.
    """

    def __init__(self, config: LengthConfig) -> None:
        if (config.cap is None) == (config.target is None):
            raise ConfigError(
                f"length.cap = {config.cap}, length.target = {config.target}: set one of them, the longest length "
                "without a penalty or the best length"
            )
        self.config = config

    def __call__(self, outputs: Sequence[str], output_tokens: Sequence[Sequence[int]] | None = None) -> list[float]:
        """Return the reward of each output."""
        config = self.config
        lengths = [len(each) for each in units(outputs, output_tokens, config.unit, "length")]
        if config.target is not None:
            return [_near(abs(length - config.target), config.slack) for length in lengths]
        return [_over(length - (config.cap or 0), config.slack) for length in lengths]


def _near(distance: int, slack: int) -> float:
    return max(0.0, 1 - distance / slack) if slack else float(distance == 0)


def _over(excess: int, slack: int) -> float:
    if excess <= 0:
        return 0.0
    return -min(1.0, excess / slack) if slack else -1.0


class Repetition:
    """A reward function that is negative where outputs repeat n-grams.

    Of N n-grams of an output, D are different. With the share s = 1 - D / N of those that repeat an earlier one,

        r = -max(0, s - free) / (1 - free),

    and 0 for an output that is shorter than n. r lies in (-1, 0]. The form is that of Yeo et al. 2025,
    arXiv:2502.03373.

    Args:
        config: the options.
    """

    def __init__(self, config: RepetitionConfig) -> None:
        self.config = config

    def __call__(self, outputs: Sequence[str], output_tokens: Sequence[Sequence[int]] | None = None) -> list[float]:
        """Return the reward of each output."""
        config = self.config
        refuse_misfit(outputs)
        if config.ignore_case:
            outputs = [output.casefold() for output in outputs]
        shares = [_repeated(each, config.n) for each in units(outputs, output_tokens, config.unit, "repetition")]
        return [0.0 - max(0.0, share - config.free) / (1 - config.free) for share in shares]


def _repeated(sequence: Sequence[object], n: int) -> float:
    """Return the share of n-grams that repeat an earlier one; 0 if there is no n-gram."""
    ngrams = [tuple(sequence[i : i + n]) for i in range(len(sequence) - n + 1)]
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
