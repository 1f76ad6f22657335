from __future__ import annotations

import pytest

from rlcore.data.order import Order
from rlcore.errors import CheckpointError


def test_every_pass_visits_everything_once_in_another_order() -> None:
    order = Order(50, seed=1)
    passes = [order.take(50) for _ in range(3)]
    assert all(sorted(visited) == list(range(50)) for visited in passes)
    assert passes[0] != passes[1] != passes[2]
    assert passes[0] != list(range(50))


def test_taking_more_than_a_pass_continues_into_the_next_passes() -> None:
    dealt = Order(3, seed=0).take(8)
    one_by_one = Order(3, seed=0)
    assert dealt == [one_by_one.take(1)[0] for _ in range(8)]
    assert sorted(dealt[:3]) == sorted(dealt[3:6]) == [0, 1, 2]


def test_taking_within_a_pass_stops_at_its_end() -> None:
    order = Order(5, seed=0)
    assert [len(order.take_within_pass(2)) for _ in range(6)] == [2, 2, 1, 2, 2, 1]
    assert len(order.take_within_pass(99)) == 5


def test_the_seed_decides_the_order() -> None:
    assert Order(30, seed=5).take(60) == Order(30, seed=5).take(60)
    assert Order(30, seed=5).take(30) != Order(30, seed=6).take(30)


def test_epochs_are_counted_with_the_part_of_the_present_one() -> None:
    order = Order(4, seed=0)
    order.take(6)
    assert order.epoch == 1.5


@pytest.mark.parametrize("before", [0, 3, 7, 10, 23])
def test_a_restored_order_continues_where_it_was_saved(before: int) -> None:
    whole, first = Order(10, seed=2), Order(10, seed=2)
    expected = whole.take(before + 15)[before:]
    first.take(before)
    resumed = Order(10, seed=99)
    resumed.take(4)
    resumed.load_state_dict(first.state_dict())
    assert resumed.take(15) == expected


def test_continuing_an_order_with_another_number_of_rows_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"written with 4 .* now there are 5"):
        Order(5, seed=0).load_state_dict(Order(4, seed=0).state_dict())
