"""Find the tokens of a batch that stand behind the same tokens: a causal model says the same at all of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NOTHING = -1
"""Stands in a row where its tokens have ended. All its bits are ones, so of two rows one of which begins the other, the
longer is sorted in front, and the shorter has nothing left of its own."""
WORTH = 0.9
"""Sharing is left alone where more than this part of the tokens would have to be read all the same."""


class Prefixes(NamedTuple):
    """Say which tokens of B rows have to be read so that every prefix of a row is.

    Attributes:
        order: long[B], the rows in such an order that those which begin alike stand together.
        owned: bool[B, C], in that order: what stands behind other tokens than in the row before. Any other real token
            stands for the same as the one before it, and above it, in its column.
    """

    order: NDArray[np.int64]
    owned: NDArray[np.bool_]


def every_prefix(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:  # noqa: ARG001  they need not be looked at
    """Have all tokens read, each for itself; the arguments are those of `distinct_prefixes`."""
    return Prefixes(np.arange(len(real)), real)


def distinct_prefixes(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:
    """Have tokens that stand behind the same tokens read once, if that saves anything to speak of.

    Sorted as strings of bytes, rows that begin alike are neighbours, so that each is compared with the one before it
    only. Which of two rows comes first means nothing.

    Args:
        rows: long[B, C], tokens, and NOTHING behind the last one of a row.
        real: bool[B, C], True for a token.
    """
    every = every_prefix(rows, real)
    if not rows.size:
        return every
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
    order = whole[:, 0].argsort(kind="stable")
    ordered = rows[order]
    owned = real[order]
    owned[1:] &= ~np.logical_and.accumulate(ordered[1:] == ordered[:-1], axis=1)
    return Prefixes(order, owned) if owned.sum() <= WORTH * real.sum() else every
