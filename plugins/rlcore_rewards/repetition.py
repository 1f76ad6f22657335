"""The reward `repetition`: a penalty for n-grams that occur before in the same output.

Of N n-grams of an output, D are different. With the share s = 1 - D / N of those that repeat an earlier one,

    r = -max(0, s - free) / (1 - free),

and 0 for an output that is shorter than n. r lies in (-1, 0].
The form is that of Yeo et al. 2025, arXiv:2502.03373.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlcore_rewards.config import RepetitionConfig
from rlcore_rewards.parts import refuse_misfit, units


class Repetition:
    """A reward function that is negative where outputs repeat themselves.

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
