"""Tests of metrics averaged over micro-batches, with numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlcore.optim.updater import Meter
from rlcore.ranks import Ranks

T, F = True, False


def meter(*parts: tuple[list[bool], list[float]]) -> Meter:
    """Return a meter of the metrics `x` and `square` of some parts."""
    made = Meter(Ranks("no"))
    for chosen, numbers in parts:
        x = torch.tensor(numbers)
        made.add(torch.tensor(chosen), {"x": x, "square": x**2})
    return made


FIRST: tuple[list[bool], list[float]] = ([T, F, T], [1.0, 100.0, 3.0])
SECOND: tuple[list[bool], list[float]] = ([T, F], [8.0, 100.0])


def test_every_chosen_entry_weighs_alike_in_whichever_part_it_is() -> None:
    assert meter(FIRST, SECOND).means() == pytest.approx({"x": 12 / 3, "square": 74 / 3})
    assert meter(FIRST).means() == pytest.approx({"x": 2.0, "square": 5.0})


@pytest.mark.parametrize(("ours", "theirs"), [([FIRST], [SECOND]), ([], [FIRST, SECOND]), ([FIRST, SECOND], [])])
def test_merged_meters_are_as_one_that_measured_everything(
    ours: list[tuple[list[bool], list[float]]], theirs: list[tuple[list[bool], list[float]]]
) -> None:
    merged, other = meter(*ours), meter(*theirs)
    merged.note("norm", torch.tensor(2.0))
    other.note("norm", torch.tensor(4.0))
    other.note("norm", torch.tensor(9.0))
    other.note("rate", torch.tensor(7.0))
    before = other.means()
    merged.merge(other)
    assert merged.means() == pytest.approx({"x": 4.0, "square": 74 / 3, "norm": 5.0, "rate": 7.0})
    assert not merged.is_empty
    assert other.means() == before  # it is read only


def test_a_meter_is_empty_until_something_is_added_or_merged() -> None:
    empty, other = meter(), meter()
    empty.merge(other)
    assert empty.is_empty
    assert empty.means() == {}
    empty.merge(meter(FIRST))
    assert not empty.is_empty


def test_an_average_over_no_tokens_is_0() -> None:
    assert meter(([F, F], [1.0, 2.0])).means() == {"x": 0.0, "square": 0.0}


def test_sums_do_not_lose_small_numbers_beside_large_ones() -> None:
    numbers: Tensor = torch.full((3,), 1e8)
    made = Meter(Ranks("no"))
    for part in (numbers, torch.ones(3), -numbers):
        made.add(torch.ones(3, dtype=torch.bool), {"x": part})
    assert made.means()["x"] == pytest.approx(3 / 9)
