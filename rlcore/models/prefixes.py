"""Find the tokens of a batch that stand behind the same tokens: a causal model says the same at all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BASE = 0x9E3779B97F4A7C15 - 2**64
"""Odd, so that no power of it vanishes modulo 2^64."""
WORTH = 0.9
"""Sharing is left alone where more than this part of the tokens would have to be read all the same."""


class Shared(NamedTuple):
    """Say which of M real tokens, in row-major order, are one and the same to a causal model.

    Attributes:
        node: long[M], the number of each token's prefix, itself included; equal numbers, equal prefixes.
        first: long[N], the first token that each of the N prefixes ends with; ascending.
    """

    node: Tensor
    first: Tensor


def shared_prefixes(tokens: Tensor, positions: Tensor, width: int) -> Shared | None:
    """Number the distinct prefixes of a batch.

    Prefixes are told apart by a polynomial of their tokens modulo 2^64 (Karp & Rabin, 1987). Where equal polynomials
    always end with the same token in the same column, the prefixes are equal: what is before has equal polynomials too.

    Args:
        tokens: long[M], the real tokens of all rows, in row-major order.
        positions: long[M], where they stand in the flattened [B, C] if every row begins at the left.
        width: C.

    Returns:
        None where next to nothing is shared.
    """
    if not len(tokens):
        return None
    columns = positions % width
    powers = torch.full((width,), BASE, device=tokens.device).cumprod(0)
    # What stands between the rows is added too, after all that is real.
    terms = tokens.new_zeros(int(positions[-1]) // width * width + width).index_copy(0, positions, tokens + 1)
    sums = (terms.view(-1, width) * powers).cumsum(1).view(-1)[positions]
    ordered, order = sums.sort(stable=True)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=is_new[1:])
    first, by_place = order[is_new].sort()
    if len(first) > WORTH * len(tokens):
        return None
    rank = torch.empty_like(by_place).index_copy(0, by_place, torch.arange(len(first), device=tokens.device))
    node = torch.empty_like(order).index_copy(0, order, rank[is_new.cumsum(0) - 1])
    twin = first[node]
    same = (tokens == tokens[twin]) & (columns == columns[twin])
    return Shared(node, first) if bool(same.all()) else None
