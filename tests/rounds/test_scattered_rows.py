"""Tests of rounds whose rows stay with the process that sampled them, on two processes, with rows worked by hand."""

from __future__ import annotations

import statistics

import pytest
from scattered_rows import A, B, C, D

from rlcore_testing.rig.isolate import call_on_two_ranks


@pytest.mark.nightly
def test_processes_receive_the_rows_that_they_want_and_nothing_else() -> None:
    """A token takes 4 bytes for its id, 1 for whether it is chosen, and 4 for its column.

    Process 0 receives the 3 and 4 tokens of A and D, process 1 the 5, 5 and 2 of B, B and C.
    """
    seen = call_on_two_ranks("scattered_rows:exchanged", {}, what="an exchange")["seen"]
    halves = [[token / 2 for token in row] for row in (D, A, C, B, B)]
    assert seen == [
        [[D, A], halves[:2], [[13, 14], [2, 3]], 9 * (3 + 4)],
        [[C, B, B], halves[2:], [[10], [7, 8], [7, 8]], 9 * (5 + 5 + 2)],
    ]


@pytest.mark.slow
def test_every_process_knows_the_numbers_of_all_rows_and_the_tokens_of_its_own() -> None:
    seen = call_on_two_ranks("scattered_rows:gathered", {}, what="a scattered round")
    expected = {
        "scores": [0.0, 2.0, 3.0], "lengths": [3, 5, 4], "actions": [2, 2, 2], "prompts": [1, 3, 2],
        "ended": [True, True, False], "own": [A, B], "width": 0, "fetched": [D, A], "of fetched": [3.0, 0.0],
        "double": [[22, 24, 26, 28], [2, 4, 6]], "length_mean": 7 / 4, "unscored": 1.0, "sums": [2.5, 7.5, 13.5],
        "mean": 23.5 / 6, "joined": [B, A, B, D],
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == expected
    chosen = [1.0, 1.5, 3.5, 4.0, 6.5, 7.0]
    mean, deviation = statistics.mean(chosen), statistics.pstdev(chosen)
    assert seen["white"] == pytest.approx([(each - mean) / deviation for each in chosen])


@pytest.mark.slow
def test_every_process_is_told_that_columns_differ() -> None:
    said = call_on_two_ranks("scattered_rows:gathered_with_other_columns", {}, what="other columns")["said"]
    assert said[0] == said[1]
    for message, name in zip(said[0], ("more", "wide"), strict=True):
        assert message.startswith("the columns of a round differ between processes: process 0: ")
        assert name in message
