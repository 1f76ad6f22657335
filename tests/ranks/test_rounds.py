"""Tests of rounds whose rows stay with the process that sampled them, on two processes, with rows worked by hand."""

from __future__ import annotations

import statistics

import pytest
import torch
from round_rows import A, B, C, D, rows_of

from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round
from rlcore_testing.rig.isolate import call_on_two_ranks


@pytest.mark.slow
def test_processes_receive_the_rows_that_they_want_and_nothing_else() -> None:
    """A token takes 4 bytes for its id, 1 for whether it is chosen and 4 for its column, a row 16 for its pair.

    Process 0 receives the 3 and 4 tokens of A and D, process 1 the 5, 5 and 2 of B, B and C.
    """
    seen = call_on_two_ranks("round_rows:exchanged", {}, what="an exchange")["seen"]
    halves = [[token / 2 for token in row] for row in (D, A, C, B, B)]
    first = [[[3.0, 7.0], [0.0, 7.0]], [3.0, 0.0], [False, True], 9 * (3 + 4) + 16 * 2]
    second = [[[1.0, 7.0], [2.0, 7.0], [2.0, 7.0]], [1.0, 2.0, 2.0], [True] * 3, 9 * (5 + 5 + 2) + 16 * 3]
    assert seen == [
        [[D, A], halves[:2], [[13, 14], [2, 3]], *first],
        [[C, B, B], halves[2:], [[10], [7, 8], [7, 8]], *second],
    ]


@pytest.mark.slow
def test_every_process_knows_the_numbers_of_all_rows_and_the_tokens_of_its_own() -> None:
    seen = call_on_two_ranks("round_rows:formed", {}, what="a round")
    expected = {
        "scores": [0.0, 2.0, 3.0], "lengths": [3, 5, 4], "actions": [2, 2, 2], "prompts": [1, 3, 2],
        "ended": [True, True, False], "own": [A, B], "fetched": [D, A], "of fetched": [3.0, 0.0],
        "double": [[22, 24, 26, 28], [2, 4, 6]], "first": [3, 8, 14], "sums": [2.5, 7.5, 13.5], "mean": 23.5 / 6,
        "tokens": [1.0, 1.5, 3.5, 4.0, 6.5, 7.0], "joined": [B, A, B, D], "whole": [A, B, D], "learning": [0, 2, 2],
        "dealt": [[A, D], [B]], "again": [B, A, B, D],
    }  # fmt: skip
    assert {name: seen[name] for name in expected} == expected
    mean, deviation = statistics.mean(expected["tokens"]), statistics.pstdev(expected["tokens"])
    assert seen["white"] == pytest.approx([(each - mean) / deviation for each in expected["tokens"]])
    assert sorted(sum(seen["parts"], [])) == [0.0, 2.0, 3.0]  # noqa: RUF017
    assert list(map(len, seen["parts"])) == [2, 1]


@pytest.mark.slow
def test_a_process_without_rows_has_the_columns_of_the_others() -> None:
    seen = call_on_two_ranks("round_rows:of_one_process", {}, what="a round of one process")["seen"]
    columns = ["half", "last", "more", "pair", "scores"]
    mean = statistics.mean([1.0, 1.5, 3.5, 4.0])
    assert seen == [[columns, [A], [3], mean], [columns, [B], [8], mean]]


@pytest.mark.slow
def test_every_process_raises_where_columns_differ() -> None:
    errors = call_on_two_ranks("round_rows:with_other_columns", {}, what="other columns")["errors"]
    assert errors[0] == errors[1]
    for message, name in zip(errors[0], ("more", "wide"), strict=True):
        assert message.startswith("the columns of a round differ between processes: process 0: ")
        assert name in message


def test_a_round_of_one_process_has_its_rows_as_they_are() -> None:
    own = rows_of(0)
    batch = Round.of(Ranks(None), own)
    assert batch.own is batch.whole() is own
    assert batch.all(own["half"]) is batch.mine(own["half"]) is own["half"]
    assert batch.mean(own["half"]) == statistics.mean([1.0, 1.5, 3.5, 4.0])
    assert batch.learning(batch["scores"] > 0).num_actions.tolist() == [0, 2]
    assert torch.equal(Round.join([batch, batch]).rows(torch.tensor([3])).own.tokens, torch.tensor([B]))
