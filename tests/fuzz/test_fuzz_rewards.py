"""Fuzz tests of reward functions: whatever they return becomes finite numbers, one for each output, or a message."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import SCALARS, VALUES, result_or_message
from hypothesis import given
from hypothesis import strategies as st

from rlcore.errors import RewardError
from rlcore.rewards.combine import Rewards
from rlcore.types import Prompt
from rlcore_testing.small import make_tokenizer

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bool, torch.int64, torch.complex64])
TENSORS = st.builds(
    lambda shape, dtype: torch.zeros(shape, dtype=dtype), st.lists(st.integers(0, 3), max_size=3), DTYPES
)
ODD = st.sampled_from([torch.zeros(2, device="meta"), torch.zeros(2).to_sparse(), np.array([1, "a"], dtype=object)])
RETURNED = VALUES | st.lists(SCALARS, min_size=2, max_size=2) | TENSORS | ODD
ERRORS = st.sampled_from([ValueError("no"), KeyError(), SystemExit(0), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x")])


class Unprintable(Exception):
    """An exception whose message raises."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def _score(function: Any) -> Any:
    prompts = [Prompt(text, (1,)) for text in "ab"]
    rewards = Rewards.build(function)
    return result_or_message(
        lambda: rewards(prompts, ["x", "y"], tokenizer=make_tokenizer(), output_tokens=[[1], [1, 2]], where="a test"),
        RewardError,
    )


@given(RETURNED)
def test_any_return_value_is_a_score_or_gives_a_clear_error(returned: Any) -> None:
    scored = _score(lambda outputs: returned)
    if not isinstance(scored, RewardError):
        assert len(scored.totals) == 2
        assert all(math.isfinite(total) for total in scored.totals)


@given(ERRORS)
def test_any_exception_of_a_reward_gives_an_error_that_names_the_function(error: BaseException) -> None:
    def judge(outputs: list[str]) -> list[float]:
        raise error

    assert "judge" in str(_score(judge))


def test_an_exception_that_cannot_be_printed_gives_a_clear_error() -> None:
    def judge(outputs: list[str]) -> list[float]:
        raise Unprintable

    assert "judge" in str(_score(judge))


@pytest.mark.parametrize("values", [[1.0, 2.0], [None, 0.5]])
def test_finite_scores_are_read_unchanged(values: list[float | None]) -> None:
    assert list(_score(lambda outputs: values).totals) == [value or 0.0 for value in values]
