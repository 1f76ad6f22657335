"""Tests of the parts of outputs that rewards read, and of the counts that they log."""

from __future__ import annotations

import time

import pytest

from rlcore_rewards.parts import Tally, after, last_block


def test_parts_of_outputs() -> None:
    assert after("a|b|c", "|") == "c"
    assert after("abc", "") == "abc"
    assert after("abc", "|") == ""
    assert last_block("x\n```python\na\nb\n```\ny\n```\nc\n```") == "c\n"
    assert last_block("```python\nnot closed") is None
    assert last_block("```a`b\nc\n ```\nd\n``` \t") == "d\n"  # a line with a further backtick opens none


def test_many_blocks_that_are_not_closed_are_read_in_linear_time() -> None:
    begin = time.process_time()
    assert last_block("```x\n" * 50_000) is None
    assert time.process_time() - begin < 2


def test_counts_are_logged_first_tenfold_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "rlcore_rewards.parts.log.warning", lambda what, **fields: logged.append((fields["count"], fields["of"]))
    )
    tally = Tally("any")
    for _ in range(12):
        tally.add(4, {"outputs are odd": 1})
    tally.add(4, {})
    assert logged == [(1, 4), (10, 40)]
    tally.close()
    tally.close()
    assert logged == [(1, 4), (10, 40), (12, 52)]
