"""Rewards of demonstrations, assigned to their tokens."""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from rlcore.config.plain import from_json
from rlcore.errors import DataError, InputsError
from rlcore.types import Sample, SampleReward

FORMS = (
    "a reward is a number for the whole sample, a list with one number for each output, or a list with one for each "
    "token the policy should choose, EOS included"
)


def build_sample_rewards(rows: Sequence[Any], samples: Sequence[Sample], what: str = "rewards") -> list[SampleReward]:
    """Assign the rewards of demonstrations, in the samples' order, to their tokens.

    * A number is assigned to the last chosen token, EOS included.
    * One number for each output of a dialogue is assigned to the last token of that output. An output is a run of
      chosen tokens.
    * One number for each chosen token is assigned to that token.

    A row may also be a mapping with one of these under `reward`, or a text of one, such as a cell of a table. If a
    sample was truncated on the right, a number for the whole sample is assigned to the last remaining chosen token.

    Args:
        rows: one for each demonstration, such as `load_source` returns.
        samples: the tokenised demonstrations.
        what: the option that holds the rewards, for errors.

    Raises:
        InputsError: there are more or fewer rewards than samples.
        DataError: a reward is invalid; the message names the first one and the reason.
    """
    if len(rows) != len(samples):
        raise InputsError(
            f"{what}: has {len(rows)} entries for {len(samples)} samples; pass one for each, in their order"
        )
    return [_place(row, sample, f"{what}[{i}]") for i, (row, sample) in enumerate(zip(rows, samples, strict=True))]


def _place(row: Any, sample: Sample, where: str) -> SampleReward:
    values = _read(row, where)
    chosen = [t for t, marked in enumerate(sample.action_mask) if marked]
    ends = [t for t in chosen if not any(sample.action_mask[t + 1 : t + 2])]
    if not isinstance(values, list):
        values, indices = [values], chosen[-1:]
    elif len(values) == len(ends):
        indices = ends
    elif len(values) == len(chosen):
        indices = chosen
    else:
        cut = "; it was truncated to data.max_sample_tokens, and so must be its rewards" if not sample.ended else ""
        raise DataError(
            f"{where}: has {len(values)} numbers, but the sample has {len(ends)} output(s) of {len(chosen)} tokens in "
            f"all, EOS included{cut}; pass one number for the whole, {len(ends)} for the outputs, or {len(chosen)} for "
            "the tokens"
        )
    rewards = [0.0] * len(sample.tokens)
    for index, reward in zip(indices, values, strict=True):
        rewards[index] = reward
    return SampleReward(tuple(rewards), dense=len(values) > 1)


def _read(row: Any, where: str) -> float | list[float]:
    if isinstance(row, Mapping):
        if "reward" not in row:
            raise DataError(f"{where}: has no key 'reward', only {', '.join(map(repr, row)) or 'none'}; {FORMS}")
        row = row["reward"]
    if isinstance(row, str):  # a cell of a table
        with suppress(ValueError):
            row = from_json(row)
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
        raise DataError(f"{where}: is {value}, not a finite number; pass a finite one, or remove the sample")
    return number
