"""Tests of the limits of the two halves of an encoder-decoder: each is reached by exactly as many tokens as it says."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from rlcore.data.text import check_parts
from rlcore.errors import DataError
from rlcore.types import Sample
from rlcore_transformers.preferences.preferences import Pair

LIMITS = [0, 2, 3, 4]
"""0 is no limit."""


def sample(num_prompt: int, num_output: int) -> Sample:
    """Return a sample whose second output token was not chosen by the policy, such as a tool's."""
    chosen = [number != 1 for number in range(num_output)]
    return Sample(tuple(range(num_prompt + num_output)), (*[False] * num_prompt, *chosen))


@pytest.mark.parametrize("max_prompt", LIMITS)
@pytest.mark.parametrize("max_output", LIMITS)
def test_a_row_is_refused_from_the_first_token_beyond_a_limit(max_prompt: int, max_output: int) -> None:
    for num_prompt, num_output in itertools.product([1, 2, 3, 4, 5], repeat=2):
        row = sample(num_prompt, num_output)
        if 0 < max_prompt < num_prompt:
            expected = pytest.raises(DataError, match=rf"rows\[1\]: its prompt has {num_prompt} .* takes {max_prompt};")
        elif 0 < max_output < num_output:
            expected = pytest.raises(DataError, match=rf"rows\[1\]: has {num_output} tokens .* takes {max_output};")
        else:
            expected = contextlib.nullcontext()
        with expected:
            check_parts([sample(1, 1), row], max_prompt=max_prompt, max_output=max_output, what="rows")


def test_both_answers_of_a_pair_are_checked_for_truncation() -> None:
    fits, long = sample(2, 2), sample(2, 3)
    for pair in (Pair(fits, long), Pair(long, fits)):
        with pytest.raises(DataError, match=r"rows\[0\]: has 3 tokens from its first output on"):
            check_parts([pair], max_prompt=2, max_output=2, what="rows")


def test_a_row_without_an_output_has_no_prompt_that_is_known() -> None:
    check_parts([Sample((1, 2, 3), (False,) * 3)], max_prompt=1, max_output=1, what="rows")
