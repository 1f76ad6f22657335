"""Run a padded batch in groups of similar length, if that saves more time than the additional forward passes take.

Models that cannot run packed (`packing`), and encoder-decoders, compute every row at the length of
the longest. A group is only as wide as its own longest row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

PASS = 128
"""Tokens of padding that take about as long as one more forward pass: on a CPU 280 in a model of 2 layers, 64 wide, and
40 in one of 4 layers, 256 wide. Other devices have not been measured, and batches are not split there."""


def in_groups(
    run: Callable[[Tensor, Tensor, Tensor], T],
    join_outputs: Callable[[list[T], Tensor], T],
    tokens: Tensor,
    mask: Tensor,
    action_mask: Tensor,
) -> T:
    """Run a padded forward pass in the groups that take the least time.

    Args:
        run: forward pass over tokens, mask and action mask; returns outputs of N chosen tokens, in row-major order.
        join_outputs: concatenates the outputs of several passes and reorders the tokens by long[N].
        tokens: long[B, T].
        mask: bool[B, T].
        action_mask: bool[B, T].
    """
    if tokens.device.type != "cpu":
        return run(tokens, mask, action_mask)
    real = mask | action_mask  # a token that is only scored, after the end of a sequence, is not in the mask
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
    """Split sequences, sorted longest first, into groups with the least total cost.

        cost = sum over groups of (sequences * longest + each)

    Args:
        lengths: B numbers of tokens, in descending order.
        each: tokens of padding that take as long as one more group.

    Returns:
        The index of the first sequence of each group, starting with 0.
    """
    count = len(lengths)
    if not count or lengths[0] * count - sum(lengths) <= each:
        return [0]
    # Groups start where the length changes: a later start would not make a group narrower.
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
