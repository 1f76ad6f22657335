from __future__ import annotations

import torch

from rlcore.batching import micro_batches, minibatches
from rlcore.ranks import Ranks
from rlcore.types import Trajectories


def numbered(count: int) -> Trajectories:
    return Trajectories.stack([[i, i] for i in range(count)], [[False, True]] * count)


def firsts(parts: list[Trajectories]) -> list[list[int]]:
    return [part.tokens[:, 0].tolist() for part in parts]


def test_minibatches_visit_every_sequence_once_and_the_last_may_be_smaller() -> None:
    parts = firsts(list(minibatches(numbered(10), 4, seed=0)))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(sum(parts, [])) == list(range(10))  # noqa: RUF017  three short lists
    assert sum(parts, []) != list(range(10))  # noqa: RUF017


def test_the_seed_decides_the_minibatches_and_nothing_else_does() -> None:
    torch.manual_seed(0)
    first = firsts(list(minibatches(numbered(20), 5, seed=7)))
    torch.manual_seed(1)
    assert firsts(list(minibatches(numbered(20), 5, seed=7))) == first
    assert firsts(list(minibatches(numbered(20), 5, seed=8))) != first


def test_a_minibatch_larger_than_the_batch_is_the_batch() -> None:
    assert [len(part) for part in minibatches(numbered(3), 8, seed=0)] == [3]


def test_micro_batches_cover_the_batch_in_order_and_know_the_last() -> None:
    ranks = Ranks()
    parts = list(micro_batches(numbered(5), 2, ranks))
    assert firsts([part for part, _ in parts]) == [[0, 1], [2, 3], [4]]
    assert [last for _, last in parts] == [False, False, True]


def test_zero_takes_all_at_once() -> None:
    parts = list(micro_batches(numbered(5), 0, Ranks()))
    assert [(len(part), last) for part, last in parts] == [(5, True)]


def test_a_prompt_alone_stands_in_where_a_ranks_share_is_short() -> None:
    ranks = Ranks()
    ranks.rank, ranks.world = 1, 2
    chosen = [[False, False, True, True], [False, True], [False, True, True]]
    batch = Trajectories.stack([[1, 2, 3, 4], [5, 6], [7, 8, 9]], chosen)
    share = ranks.take_share(batch)
    assert [row[mask].tolist() for row, mask in zip(share.tokens, share.mask, strict=True)] == [[5, 6], [1, 2]]
    assert share.action_tokens == [[6], []]
    assert batch.num_actions.tolist() == [2, 1, 2]
