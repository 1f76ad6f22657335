"""Turn what a user calls the rewards of samples into one number for each token of each demonstration."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch

from rlcore.data.sources import load_source
from rlcore.errors import DataError, InputsError
from rlcore.types import Sample

FORMS = (
    "a reward is a number for the whole sample, a list with one number for each output, or a list with one for each "
    "token the policy should choose, EOS included"
)


@attrs.frozen
class SampleReward:
    """Hold what one demonstration is worth.

    Attributes:
        tokens: T numbers, the reward for choosing each token; zero at tokens that are not to be chosen.
        dense: several numbers were given, which say where in the sample the reward was earned.
    """

    tokens: tuple[float, ...]
    dense: bool

    @property
    def total(self) -> float:
        """Return the sample's undiscounted return."""
        return math.fsum(self.tokens)


def build_sample_rewards(source: Any, samples: Sequence[Sample], what: str = "rewards") -> list[SampleReward]:
    """Read the rewards of demonstrations and put them where they were earned, in the samples' order.

    * A number: the last chosen token, EOS included.
    * One number for each output of a dialogue: the last token of that output. An output is a run of chosen tokens.
    * One number for each chosen token: that token.

    A row of a file may be a mapping that holds it under `reward`. Where a sample was cut on the right, its number goes
    to the last chosen token that is left: it speaks of the whole.

    Args:
        source: whatever `load_source` takes.
        samples: the demonstrations, as the policy reads them.
        what: the option the rewards belong to, for messages.

    Raises:
        InputsError: there are more or fewer rewards than samples.
        DataError: naming the first reward that cannot be used, and why.
    """
    rows = load_source(source, what)
    if len(rows) != len(samples):
        raise InputsError(
            f"{what}: has {len(rows)} entries for {len(samples)} samples; give one for each, in their order"
        )
    return [_place(row, sample, f"{what}[{i}]") for i, (row, sample) in enumerate(zip(rows, samples, strict=True))]


def _place(row: Any, sample: Sample, where: str) -> SampleReward:
    given = _read(row, where)
    chosen = [t for t, marked in enumerate(sample.action_mask) if marked]
    ends = [t for t in chosen if not any(sample.action_mask[t + 1 : t + 2])]
    if not isinstance(given, list):
        given, slots = [given], chosen[-1:]
    elif len(given) == len(ends):
        slots = ends
    elif len(given) == len(chosen):
        slots = chosen
    else:
        cut = "; it was cut to data.max_sample_tokens, which rewards must follow" if not sample.ended else ""
        raise DataError(
            f"{where}: has {len(given)} numbers, but the sample has {len(ends)} output(s) of {len(chosen)} tokens in "
            f"all, EOS included{cut}; give one number for the whole, {len(ends)} for the outputs, or {len(chosen)} for "
            "the tokens"
        )
    rewards = [0.0] * len(sample.tokens)
    for slot, reward in zip(slots, given, strict=True):
        rewards[slot] = reward
    return SampleReward(tuple(rewards), dense=len(given) > 1)


def _read(row: Any, where: str) -> float | list[float]:
    if isinstance(row, Mapping):
        if "reward" not in row:
            raise DataError(f"{where}: has no key 'reward', only {', '.join(map(repr, row)) or 'none'}; {FORMS}")
        row = row["reward"]
    if isinstance(row, (torch.Tensor, np.ndarray, np.generic)):
        row = row.tolist()
    if isinstance(row, (list, tuple)):
        return [_number(value, f"{where}[{k}]") for k, value in enumerate(row)]
    return _number(row, where)


def _number(value: Any, where: str) -> float:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, (numbers.Real, decimal.Decimal)):
        raise DataError(f"{where}: is {value!r:.80} ({type(value).__name__}), not a number; {FORMS}")
    try:
        number = float(value)
    except (OverflowError, ValueError):  # an integer too large for a float, a signalling NaN
        number = math.nan
    if not abs(number) <= torch.finfo(torch.float32).max:
        raise DataError(f"{where}: is {value}, not a finite number; give a finite one, or drop the sample")
    return number
