"""The law of strategies of sharding is broken by wrong ones, and kept by those of this repository."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept
from sites import installed, wrong

from rlcore_testing.laws import shardings

WRONG = [
    Wrong("two_processes_make_the_steps_of_one", "unaveraged", "after 3 steps weights differ by"),
    Wrong("two_processes_make_the_steps_of_one", "silent", "its error does not name run.shard"),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_strategy_breaks_the_law(case: Wrong) -> None:
    assert_broken(shardings, case, wrong("shardings", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(shardings, WRONG)


@pytest.mark.parametrize("name", ["rlcore:none", "rlcore-shard:fsdp"])
def test_a_strategy_that_divides_nothing_or_everything_keeps_the_law(name: str) -> None:
    assert_kept(shardings.two_processes_make_the_steps_of_one, installed("shardings", name))
