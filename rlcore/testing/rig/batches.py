"""Batches to hold laws with, and the one way to compare them.

Sequence by sequence and without padding, which carries nothing and may stand on either side.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.testing.law import require
from rlcore.types import Trajectories


def make_batch(seed: int, *, height: int = 3, width: int = 5, left: bool = False) -> Trajectories:
    """Make sequences of different lengths, the longest as wide as the batch, with columns of both forms."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [max(1, width - i) for i in range(height)]
    tokens = [torch.randint(0, 30, (length,), generator=generator).tolist() for length in lengths]
    batch = Trajectories.stack(
        tokens, [[t > 0 for t in range(length)] for length in lengths], ended=[i % 2 == 0 for i in range(height)]
    )
    if left:
        batch = batch.each(lambda array: array.flip(1) if array.dim() > 1 else array)
    return batch.with_columns(
        values=torch.randn(height, width, generator=generator) * batch.mask,
        scores=torch.randn(height, generator=generator),
    )


def compare(expected: Sequence[Trajectories], seen: Trajectories, advice: str, *, what: str = "what was taken") -> None:
    """Require the sequences of `expected`, one batch after another, padding aside."""
    wanted = [row for batch in expected for row in _sequences(batch)]
    found = _sequences(seen)
    require(
        len(found) == len(wanted),
        f"{what} was to be {len(wanted)} sequences; it was {len(found)}; {advice}",
    )
    for i, (want, got) in enumerate(zip(wanted, found, strict=True)):
        require(
            want.keys() == got.keys(),
            f"{what}: sequence {i} was to have {', '.join(want)}; it had {', '.join(got)}; {advice}",
        )
        for name, array in want.items():
            require(
                array.dtype == got[name].dtype,
                f"{what}: '{name}' was to be {array.dtype}; it was {got[name].dtype}; {advice}",
            )
            require(
                _is_same(array, got[name]),
                f"{what}: '{name}' of sequence {i} was to be {_short(array)}; it was {_short(got[name])}; {advice}",
            )


def _sequences(batch: Trajectories) -> list[dict[str, Tensor]]:
    """Split a batch into its sequences: what is said of their real tokens, and of each as a whole."""
    arrays = {"tokens": batch.tokens, "action_mask": batch.action_mask, "ended": batch.ended, **batch.columns}
    return [
        {name: array[i][real] if array.dim() > 1 else array[i] for name, array in arrays.items()}
        for i, real in enumerate(batch.mask)
    ]


def _is_same(expected: Tensor, seen: Tensor) -> bool:
    if expected.shape != seen.shape:
        return False
    return bool(((expected == seen) | ((expected != expected) & (seen != seen))).all())  # noqa: PLR0124  NaN


def _short(array: Tensor) -> str:
    return f"{array.tolist()}"[:120]
