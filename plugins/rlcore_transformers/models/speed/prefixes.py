"""Find tokens of a batch that follow equal prefixes: a causal model's outputs for them are equal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NOTHING = -1
"""Padding value for the byte-wise sort. All its bits are ones, so it sorts last: a row that is a prefix of another
comes after it and owns no tokens."""
WORTH = 0.9
"""Tokens are shared only if at most this fraction of them remains to be computed."""


class Prefixes(NamedTuple):
    """The tokens of B rows to compute so that every prefix of every row is covered.

    Attributes:
        order: long[B], the rows sorted so that rows with equal prefixes are neighbours.
        owned: bool[B, C], in that order: True for tokens whose prefix differs from that of the row before. Any other
            real token has the same output as the token above it in its column.
    """

    order: NDArray[np.int64]
    owned: NDArray[np.bool_]


def every_prefix(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:  # noqa: ARG001  the tokens do not matter
    """Compute every token separately; the arguments are those of `distinct_prefixes`."""
    return Prefixes(np.arange(len(real)), real)


def distinct_prefixes(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:
    """Compute tokens after equal prefixes once, if that saves enough tokens (`WORTH`).

    Rows sorted as byte strings have equal prefixes next to each other, so each row is compared only with the one before
    it. The order of the rows has no other meaning.

    Args:
        rows: long[B, C], tokens, and NOTHING after the last token of a row.
        real: bool[B, C], True for tokens.
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
