"""The law of strategies of sharding is broken by wrong ones, and kept by the built-in ones."""

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


def test_every_law_is_seen_to_fail() -> None:
    assert_all_seen(shardings, WRONG)


@pytest.mark.parametrize("name", ["none", "fsdp", "zero2"])  # the last is refused where DeepSpeed is not installed
def test_a_strategy_of_the_core_keeps_the_law(name: str) -> None:
    assert_kept(shardings.two_processes_make_the_steps_of_one, installed("shardings", f"rlcore:{name}"))
