"""The reward `math_accuracy`: 1 if the answer in an output equals that of a column as mathematics, else 0."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlcore.errors import PluginError
from rlcore_rewards.columns import refuse_misfit, refuse_missing, signature
from rlcore_rewards.config import MathAccuracyConfig
from rlcore_rewards.extras import load
from rlcore_rewards.math_processes import Outcome, shared_processes
from rlcore_rewards.parts import after
from rlcore_rewards.tally import Tally


class MathAccuracy:
    """A reward function that finds the answer in each output and compares it with a column, by math-verify.

    Args:
        config: the options.

    Raises:
        ConfigError: the column cannot be named.
        PluginError: math-verify is not installed, or the system is Windows.
    """

    def __init__(self, config: MathAccuracyConfig) -> None:
        if sys.platform == "win32":
            raise PluginError("reward 'math_accuracy' needs the signals and limits of POSIX; Windows has none")
        load("math_verify", reward="math_accuracy", extra="math")
        self.config, self._processes = config, shared_processes(config)
        self._tally = Tally("math_accuracy")
        self.__signature__ = signature("math_accuracy.column", [config.column])

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[Any]) -> list[float | None]:
        """Return the reward of each output; None for a row whose own answer is missing or cannot be parsed."""
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        golds = columns[self.config.column]
        rows = [i for i, gold in enumerate(golds) if gold is not None]
        found: list[Outcome] = ["no gold"] * len(outputs)
        pairs = [(str(golds[i]), after(outputs[i], self.config.after)) for i in rows]
        for i, outcome in zip(rows, self._processes.compare(pairs), strict=True):
            found[i] = outcome
        self._count(found)
        return [self._reward(outcome) for outcome in found]

    def close(self) -> None:
        """End the processes, and log how many outputs could not be parsed."""
        self._processes.close()
        self._tally.close()

    def _reward(self, outcome: Outcome) -> float | None:
        is_parsed = outcome in ("equal", "different")
        if outcome == "no gold" or (not is_parsed and self.config.unparsed is None):
            return None
        if self.config.report == "parsed":
            return float(is_parsed)
        return float(outcome == "equal") if is_parsed else self.config.unparsed

    def _count(self, found: Sequence[Outcome]) -> None:
        config, numbers = self.config, Counter(found)
        get = "no reward" if config.unparsed is None else f"{config.unparsed:g}"
        texts: dict[Outcome, str] = {
            "unparsed": f"outputs have no answer that can be parsed, and get {get}",
            "slow": f"outputs took longer than math_accuracy.timeout_s = {config.timeout_s:g}, or more memory than "
            f"math_accuracy.memory_mb = {config.memory_mb}, and get {get}",
            "no gold": f"outputs have no answer in the column '{config.column}' that can be parsed, and get no reward",
        }
        is_counted = config.report == "accuracy"  # once for both
        self._tally.add(len(found), {texts[key]: numbers[key] for key in texts if is_counted and numbers[key]})
