"""The reward `length`: a limit or a target for the length L of an output.

cap:     r = 0                            for L <= cap
         r = -min(1, (L - cap) / slack)   for L > cap; -1 if slack is 0
target:  r = max(0, 1 - |L - target| / slack);  1 at the target and 0 elsewhere if slack is 0
"""

from __future__ import annotations

from collections.abc import Sequence

from rlcore.errors import ConfigError
from rlcore_rewards.config import LengthConfig
from rlcore_rewards.parts import units


class Length:
    """A reward function of the length of outputs.

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
