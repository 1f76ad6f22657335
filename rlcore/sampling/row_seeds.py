"""Random numbers that belong to rows: every row has a seed of its own, from which its uniform numbers follow.

The numbers are a hash of (seed, position), so those of a row depend neither on other rows nor on how many are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcore.errors import DataError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""Distance of neighbouring states of SplitMix64: the golden ratio times 2^64, made odd."""
_SEEDS = 2**63
"""Seeds lie in 0.._SEEDS-1, which every library of random numbers accepts."""


def draw_seeds(count: int, generator: torch.Generator | None) -> list[int]:
    """Draw `count` seeds, in 0..2^63-1; from torch's default generator if `generator` is None."""
    device = torch.device("cpu") if generator is None else generator.device
    seeds: list[int] = torch.randint(_SEEDS - 1, (count,), generator=generator, device=device).tolist()
    return seeds


def derive_seeds(seed: int, rows: Sequence[int]) -> list[int]:
    """Return the seeds, in 0..2^63-1, of the rows with these indices in a round whose seed is `seed`."""
    start = _mix(np.array([seed], dtype=np.uint64))
    seeds: list[int] = (_hash(start, np.array(rows, dtype=np.uint64)) >> np.uint64(1)).tolist()
    return seeds


def row_uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Return `count` uniform random numbers in [0, 1) for each seed: float64[N, count], on the CPU.

    Number t of a row is the hash of its seed and t: the t-th output of SplitMix64 (Steele, Lea and Flood 2014, "Fast
    splittable pseudorandom number generators"), with 53 bits.

    Args:
        seeds: N numbers in 0..2^64-1.
        count: numbers for each.
    """
    hashed = _hash(np.array(seeds, dtype=np.uint64)[:, None], np.arange(count, dtype=np.uint64))
    return torch.from_numpy((hashed >> np.uint64(11)) * 2.0**-53)


def check_seeds(seeds: Sequence[int], num_prompts: int) -> None:
    """Check that there is one seed for each prompt.

    Raises:
        DataError: there are more or fewer.
    """
    if len(seeds) != num_prompts:
        raise DataError(f"row_seeds: has {len(seeds)} seeds for {num_prompts} prompts; give one for each prompt")


def _hash(seed: NDArray[np.uint64], position: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return _mix(seed + (position + np.uint64(1)) * _GAMMA)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output of SplitMix64 at each state, computed in place; products wrap at 2^64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state
