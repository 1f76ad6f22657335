"""Run a padded batch in groups of about one length, where that saves more than the further passes cost.

Families that cannot run packed (`rlcore.models.speed.packing`), and encoder-decoders, read every row as if it were as
long as the longest. Cut into groups, each is only as wide as its own longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

PASS = 128
"""Tokens of padding that cost about as much as one more pass: on a CPU 280 in a model of 2 layers 64 wide, 40 in one of
4 layers 256 wide. Other devices have not been measured, and batches stay whole there."""


def in_groups(
    run: Callable[[Tensor, Tensor, Tensor], T],
    join_outputs: Callable[[list[T], Tensor], T],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> T:
    """Run a padded pass in as many groups as pay.

    Args:
        run: a pass over tokens, mask and action mask; what it returns is about the N chosen tokens, in row-major order.
        join_outputs: puts what passes returned side by side, and takes the entries of long[N] of that, in that order.
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
    """
    if tokens.device.type != "cpu":
        return run(tokens, mask, action_mask)
    real = mask | action_mask  # a token that is only asked about, past the end of a sequence, is not in the mask
    lengths, order = real.sum(1).sort(descending=True, stable=True)
    cuts = cut(lengths.tolist(), PASS)
    if len(cuts) == 1:
        return run(tokens, mask, action_mask)
    numbers = torch.zeros_like(tokens)
    numbers[action_mask] = torch.arange(int(action_mask.sum()))
    parts, outputs = [], []
    for rows in order.tensor_split(cuts[1:]):
        used = real[rows].any(0).nonzero()[:, 0]
        columns = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 1)
        chosen = action_mask[rows, columns]
        parts.append(numbers[rows, columns][chosen])
        outputs.append(run(tokens[rows, columns], mask[rows, columns], chosen))
    return join_outputs(outputs, torch.cat(parts).argsort())


def cut(lengths: Sequence[int], each: int = PASS) -> list[int]:
    """Say where to cut sequences, given longest first, so that all groups together cost least.

        cost = sum over groups of (sequences * longest + each)

    Args:
        lengths: B numbers of tokens, none rising.
        each: tokens of padding that cost as much as one more group.

    Returns:
        The first sequence of each group, beginning with 0.
    """
    count = len(lengths)
    if not count or lengths[0] * count - sum(lengths) <= each:
        return [0]
    # A group begins where the length changes: one that began later would be as wide.
    starts = [0, *(at for at in range(1, count) if lengths[at] < lengths[at - 1])]
    least, then = {count: 0}, dict[int, int]()
    for i in reversed(range(len(starts))):
        start = starts[i]
        costs = {end: (end - start) * lengths[start] + each + least[end] for end in (*starts[i + 1 :], count)}
        then[start] = min(costs, key=costs.__getitem__)
        least[start] = costs[then[start]]
    cuts, start = [], 0
    while start < count:
        cuts.append(start)
        start = then[start]
    return cuts
