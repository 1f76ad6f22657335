"""Batches for laws, and their comparison sequence by sequence, ignoring padding."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.types import Trajectories
from rlcore_testing.law import require


def make_batch(seed: int, *, height: int = 3, width: int = 5, left: bool = False) -> Trajectories:
    """Return a batch of sequences of different lengths with columns [B] and [B, T]; `left` pads on the left."""
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


def compare(
    expected: Sequence[Trajectories], seen: Trajectories, advice: str, *, what: str = "the taken batch"
) -> None:
    """Require `seen` to hold the sequences of the `expected` batches in their order, ignoring padding."""
    rows = [row for batch in expected for row in _sequences(batch)]
    seen_rows = _sequences(seen)
    require(
        len(seen_rows) == len(rows),
        f"{what} should have {len(rows)} sequences; it has {len(seen_rows)}; {advice}",
    )
    for i, (want, got) in enumerate(zip(rows, seen_rows, strict=True)):
        require(
            want.keys() == got.keys(),
            f"{what}: sequence {i} should have {', '.join(want)}; it has {', '.join(got)}; {advice}",
        )
        for name, array in want.items():
            require(
                array.dtype == got[name].dtype,
                f"{what}: '{name}' should be {array.dtype}; it is {got[name].dtype}; {advice}",
            )
            require(
                _is_same(array, got[name]),
                f"{what}: '{name}' of sequence {i} should be {_short(array)}; it is {_short(got[name])}; {advice}",
            )


def _sequences(batch: Trajectories) -> list[dict[str, Tensor]]:
    """Split a batch into its sequences, without padding."""
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
