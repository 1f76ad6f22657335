from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round, micro_batches, share_of
from rlcore.types import Trajectories


def numbered(count: int) -> Trajectories:
    return Trajectories.stack([[i, i] for i in range(count)], [[False, True]] * count)


def cut(batch: Trajectories, size: int, *, seed: int, group: int = 1) -> Iterator[Trajectories]:
    """Yield the rows of the minibatches of a round."""
    for part in Round.of(Ranks(), batch).minibatches(size, seed=seed, group=group):
        yield part.own


def firsts(parts: list[Trajectories]) -> list[list[int]]:
    return [part.tokens[:, 0].tolist() for part in parts]


def test_minibatches_visit_every_sequence_once_and_the_last_may_be_smaller() -> None:
    parts = firsts(list(cut(numbered(10), 4, seed=0)))
    assert [len(part) for part in parts] == [4, 4, 2]
    assert sorted(sum(parts, [])) == list(range(10))  # noqa: RUF017  three short lists
    assert sum(parts, []) != list(range(10))  # noqa: RUF017


def test_the_seed_decides_the_minibatches_and_nothing_else_does() -> None:
    torch.manual_seed(0)
    first = firsts(list(cut(numbered(20), 5, seed=7)))
    torch.manual_seed(1)
    assert firsts(list(cut(numbered(20), 5, seed=7))) == first
    assert firsts(list(cut(numbered(20), 5, seed=8))) != first


def test_a_minibatch_larger_than_the_batch_is_the_batch() -> None:
    assert [len(part) for part in cut(numbered(3), 8, seed=0)] == [3]


def ragged(*lengths: int) -> Trajectories:
    """Return sequences whose first token is their index and whose prompt is one token."""
    rows = [[i] * length for i, length in enumerate(lengths)]
    batch = Trajectories.stack(rows, [[False] + [True] * (length - 1) for length in lengths])
    return batch.with_columns(number=torch.arange(len(lengths)))


def rank(number: int, world: int) -> Ranks:
    ranks = Ranks()
    ranks.rank, ranks.world = number, world
    return ranks


def test_micro_batches_cover_the_batch_and_know_the_last() -> None:
    parts = list(micro_batches(numbered(5), 2, Ranks()))
    assert firsts([part for part, _ in parts]) == [[0, 1], [2, 3], [4]]
    assert [last for _, last in parts] == [False, False, True]


def test_the_longest_come_first_and_every_part_is_as_wide_as_its_longest() -> None:
    parts = [part for part, _ in micro_batches(ragged(3, 7, 2, 5, 7, 4), 2, Ranks())]
    assert [part["number"].tolist() for part in parts] == [[1, 4], [3, 5], [0, 2]]
    assert [part.tokens.shape[1] for part in parts] == [7, 5, 3]
    for part in parts:
        assert part.tokens[:, 0].tolist() == part["number"].tolist()


@pytest.mark.parametrize(
    ("tokens", "size", "numbers"),
    [
        (14, 0, [[1, 4], [3, 5], [0, 2]]),  # 2 x 7, 2 x 5 (3 x 5 is more), 2 x 3
        (15, 0, [[1, 4], [3, 5, 0], [2]]),
        (15, 1, [[1], [4], [3], [5], [0], [2]]),
        (6, 0, [[1], [4], [3], [5], [0, 2]]),  # 7 is more than 6, and cannot be split
        (42, 0, [[1, 4, 3, 5, 0, 2]]),
        (42, 4, [[1, 4, 3, 5], [0, 2]]),
    ],
)
def test_a_part_holds_no_more_tokens_than_were_allowed(tokens: int, size: int, numbers: list[list[int]]) -> None:
    parts = list(micro_batches(ragged(3, 7, 2, 5, 7, 4), size, Ranks(), tokens=tokens))
    assert [part["number"].tolist() for part, _ in parts] == numbers
    assert [last for _, last in parts] == [False] * (len(numbers) - 1) + [True]


@pytest.mark.parametrize("tokens", [0, 1, 9, 16, 30, 1000])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
@pytest.mark.parametrize("world", [2, 3])
def test_ranks_yield_equally_often_within_bounds_and_cover_the_batch(world: int, size: int, tokens: int) -> None:
    generator = torch.Generator().manual_seed(world * 100 + size)
    for count in (1, 4, 7, 12):
        batch = ragged(*torch.randint(2, 17, (count,), generator=generator).tolist())
        shares = [list(micro_batches(batch, size, rank(number, world), tokens=tokens)) for number in range(world)]
        assert len({len(share) for share in shares}) == 1
        assert all([last for _, last in share] == [False] * (len(share) - 1) + [True] for share in shares)
        parts = [part for share in shares for part, _ in share]
        learned = [int(number) for part in parts for number in part["number"][part.num_actions > 0]]
        assert sorted(learned) == list(range(count))
        for part in parts:
            assert not size or len(part) <= size
            assert not tokens or len(part) == 1 or len(part) * int(part.mask.sum(1).max()) <= tokens


def test_a_repeated_row_that_fills_a_ranks_share_keeps_the_token_bound() -> None:
    batch = Trajectories.stack([[1] * 9, *[[2] * 3] * 4], [[False] * 8 + [True], *[[False, True, True]] * 4])
    shares = [list(micro_batches(batch, 0, rank(number, 2), tokens=12)) for number in (0, 1)]
    assert [[part.mask.sum(1).tolist() for part, _ in share] for share in shares] == [[[9], [3], [3]], [[3], [3], [8]]]


def test_rows_processed_in_parts_are_returned_in_their_order() -> None:
    batch, seen = ragged(3, 7, 2, 5, 7, 4), list[list[int]]()

    def mark(part: Trajectories) -> Trajectories:
        seen.append(part["number"].tolist())
        return part.with_columns(marked=part["number"] * 10, each=part.tokens * 2)

    changed = Round.of(Ranks(), batch).map(mark, size=2, tokens=12).own
    assert seen == [[1], [4], [3, 5], [0, 2]]
    assert changed["marked"].tolist() == [0, 10, 20, 30, 40, 50]
    assert torch.equal(changed.tokens, batch.tokens)
    assert torch.equal(changed["each"], batch.tokens * 2)
    assert torch.equal(changed.mask, batch.mask)


def test_a_micro_batch_size_of_zero_takes_the_whole_batch() -> None:
    parts = list(micro_batches(numbered(5), 0, Ranks()))
    assert [(len(part), last) for part, last in parts] == [(5, True)]


def test_a_short_share_of_a_rank_is_filled_with_a_row_of_prompt_tokens_only() -> None:
    ranks = Ranks()
    ranks.rank, ranks.world = 1, 2
    chosen = [[False, False, True, True], [False, True], [False, True, True]]
    batch = Trajectories.stack([[1, 2, 3, 4], [5, 6], [7, 8, 9]], chosen)
    share = share_of(batch, ranks)
    assert [row[mask].tolist() for row, mask in zip(share.tokens, share.mask, strict=True)] == [[5, 6], [1, 2]]
    assert share.action_tokens == [[6], []]
    assert batch.num_actions.tolist() == [2, 1, 2]


def pairs(parts: list[Trajectories], group: int = 2) -> list[list[int]]:
    """Return the sequence indices of each part, and check that groups are whole, adjacent and in order."""
    numbers = [part["number"].tolist() for part in parts]
    for part in numbers:
        for start in range(0, len(part), group):
            assert part[start] % group == 0
            assert part[start : start + group] == list(range(part[start], part[start] + group))
    return numbers


@pytest.mark.parametrize(
    ("size", "tokens", "numbers"),
    [
        (0, 0, [[0, 1, 2, 3, 4, 5, 6, 7]]),
        (4, 0, [[4, 5, 0, 1], [2, 3, 6, 7]]),  # the longest of the pairs: 6, 5, 9, 2
        (5, 0, [[4, 5, 0, 1], [2, 3, 6, 7]]),  # two and a half pairs are rounded to two
        (2, 0, [[4, 5], [0, 1], [2, 3], [6, 7]]),
        (1, 0, [[4, 5], [0, 1], [2, 3], [6, 7]]),  # a pair is never split
        (0, 24, [[4, 5], [0, 1, 2, 3], [6, 7]]),  # 4 x 9 is more, 4 x 6 is not
        (0, 3, [[4, 5], [0, 1], [2, 3], [6, 7]]),
    ],
)
def test_sorting_and_cutting_leave_groups_whole(size: int, tokens: int, numbers: list[list[int]]) -> None:
    batch = ragged(3, 6, 5, 2, 9, 2, 2, 2)
    parts = [part for part, _ in micro_batches(batch, size, Ranks(), tokens=tokens, group=2)]
    assert pairs(parts) == numbers


@pytest.mark.parametrize("tokens", [0, 1, 9, 30, 1000])
@pytest.mark.parametrize("size", [0, 1, 3, 6])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("group", [2, 3])
def test_ranks_share_whole_groups_within_bounds(world: int, size: int, tokens: int, group: int) -> None:
    generator = torch.Generator().manual_seed(world * 100 + size)
    for count in (1, 4, 7):
        batch = ragged(*torch.randint(2, 17, (count * group,), generator=generator).tolist())
        shares = [
            list(micro_batches(batch, size, rank(number, world), tokens=tokens, group=group)) for number in range(world)
        ]
        assert len({len(share) for share in shares}) == 1
        parts = [part for share in shares for part, _ in share]
        pairs(parts, group)
        learned = [int(number) for part in parts for number in part["number"][part.num_actions > 0]]
        assert sorted(learned) == list(range(count * group))
        for part in parts:
            assert not size or len(part) <= max(size, group)
            assert not tokens or len(part) == group or len(part) * int(part.mask.sum(1).max()) <= tokens


def test_minibatches_shuffle_groups_and_not_what_is_in_them() -> None:
    parts = list(cut(ragged(*range(2, 14)), 4, seed=0, group=2))
    numbers = pairs(parts)
    assert [len(part) for part in numbers] == [4, 4, 4]
    assert sorted(sum(numbers, [])) == list(range(12)) != sum(numbers, [])  # noqa: RUF017


def test_a_batch_or_a_minibatch_that_would_cut_a_group_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch of 5 sequences: must be a multiple of 2"):
        next(micro_batches(numbered(5), 2, Ranks(), group=2))
    with pytest.raises(ValueError, match="a batch of 5 sequences: must be a multiple of 2"):
        next(cut(numbered(5), 2, seed=0, group=2))
    with pytest.raises(ValueError, match="minibatches of 3 rows: must be a multiple of 2"):
        next(cut(numbered(6), 3, seed=0, group=2))
