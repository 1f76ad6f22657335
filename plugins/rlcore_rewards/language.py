"""The reward `language`: whether an output is written in a language, or how probable that is, by lingua.

Lingua compares n-gram statistics that are part of the package, without random numbers or a network, and is reliable for
single sentences. Probabilities are among the languages that it tells apart (`among`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import LanguageConfig
from rlcore_rewards.parts import Tally, after, load, refuse_misfit, refuse_missing, signature

PLACES = 6
"""Places to which probabilities are rounded: threads may add them in another order."""


class Language:
    """A reward function that detects the language of outputs.

    Args:
        config: the options.

    Raises:
        ConfigError: a code is unknown, no language is set, or there is only one to tell apart.
        PluginError: lingua is not installed.
    """

    def __init__(self, config: LanguageConfig) -> None:
        self.config = config
        self._lingua = load("lingua", reward="language", extra="language")
        if (config.language is None) == (config.column is None):
            raise ConfigError(
                f"language.language = {config.language!r}, language.column = {config.column!r}: set one of them, the "
                "code of the language or the column with it"
            )
        self.codes = _distinct([*([] if config.language is None else [config.language]), *config.among])
        for code in self.codes:
            if self._iso(code) is None:
                raise ConfigError(
                    f"language: {code!r} is not the ISO 639-1 code of a language that lingua detects "
                    f"({', '.join(self._known())})"
                )
        if len(self.codes) == 1:
            raise ConfigError(f"language.among = {list(config.among)!r}: name a second language to tell apart")
        self._tally = Tally("language")
        self.__signature__ = signature("language.column", [config.column])

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[Any]) -> list[float | None]:
        """Return a number in [0, 1] for each output, `undecided` where no language is found, None without a code.

        Raises:
            RewardError: the code of a row is none of the languages told apart.
        """
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        config = self.config
        wanted = [config.language] * len(outputs) if config.column is None else list(columns[config.column])
        for i, code in enumerate(wanted):
            if code is not None and (not isinstance(code, str) or code.lower() not in self.codes):
                raise RewardError(
                    f"sample {i}, column '{config.column}': {code!r} is none of the languages that are told apart "
                    f"({', '.join(self.codes)}); add it to language.among"
                )
        texts = [after(each, config.after).encode("utf-8", "replace").decode("utf-8") for each in outputs]
        found = [
            self._probabilities(values)
            for values in self._detector.compute_language_confidence_values_in_parallel(texts)
        ]
        rewards = [
            None if code is None else self._score(code.lower(), each) for code, each in zip(wanted, found, strict=True)
        ]
        counts = {
            f"outputs have no language that can be detected, and get {config.undecided}": sum(
                each is None and code is not None for code, each in zip(wanted, found, strict=True)
            ),
            f"outputs have no code in the column '{config.column}', and get no reward": wanted.count(None),
        }
        self._tally.add(len(outputs), {what: number for what, number in counts.items() if number})
        return rewards

    def close(self) -> None:
        """Log the number of outputs without a language."""
        self._tally.close()

    def _score(self, code: str, found: dict[str, float] | None) -> float | None:
        if found is None:
            return self.config.undecided
        if self.config.report == "confidence":
            return found[code]
        return float(found[code] == max(found.values()))

    def _probabilities(self, values: Any) -> dict[str, float] | None:
        """Return the probability of each language; None if none is more likely than all others."""
        found = {str(each.language.iso_code_639_1.name).lower(): round(float(each.value), PLACES) for each in values}
        first, second = sorted(found.values(), reverse=True)[:2]
        return None if first == second else found

    @cached_property
    def _detector(self) -> Any:
        codes = [self._iso(code) for code in sorted(self.codes)]
        return self._lingua.LanguageDetectorBuilder.from_iso_codes_639_1(*codes).build()

    def _iso(self, code: str) -> object:
        return getattr(self._lingua.IsoCode639_1, code.upper(), None) if code.isalpha() and len(code) == 2 else None

    def _known(self) -> list[str]:
        return sorted(name.lower() for name in dir(self._lingua.IsoCode639_1) if len(name) == 2)


def _distinct(codes: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(code.lower() for code in codes))
