"""Tests of the pipeline `stepwise`."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_reward.process_trainer import SteppedSample, build_stepwise
from rlcore_testing.small import make_tokenizer


def build(row: dict[str, Any], *, tokenizer: Any = None, max_length: int = 0, **options: Any) -> SteppedSample:
    (made,) = build_stepwise([row], tokenizer or make_tokenizer(), DataConfig(**options), max_length=max_length)
    return made


def test_the_label_of_a_step_is_at_its_last_token() -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["\n"])
    line = tokenizer.convert_tokens_to_ids("\n")
    row = {"prompt": "a", "completions": ["bc", "d"], "labels": [True, False]}
    assert build(row, tokenizer=tokenizer) == SteppedSample(
        Sample((0, 1, 2, line, 3, line), (False, True, True, True, True, True)), (-100, -100, -100, 1, -100, 0)
    )
    cut = build(row, tokenizer=tokenizer, max_sample_tokens=4)
    assert cut.labels == (-100, -100, -100, 1)
    assert not cut.sample.ended


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "a", "completions": ["b"], "labels": []}, r"one true or false for each of 1 steps"),
        ({"prompt": "a", "completions": [], "labels": []}, r"samples\[0\]: 'completions' is \[\]"),
        ({"completions": ["b"], "labels": [True]}, r"samples\[0\]: 'prompt' is None"),
    ],
)
def test_a_malformed_row_is_named_with_its_index(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(row)


def test_steps_are_cut_to_the_context_or_the_limit() -> None:
    row = {"prompt": "ab", "completions": ["c", "de"], "labels": [True, False]}
    for context, kept in ((6, [True]), (3, [])):
        cut = build(row, max_length=context)
        assert (len(cut.sample.tokens), cut.sample.ended) == (context, False)
        assert [label for label in cut.labels if label >= 0] == kept
    cut = build(row, max_length=6, max_sample_tokens=5)
    assert (len(cut.sample.tokens), len(cut.labels), cut.sample.ended) == (5, 5, False)


def test_a_row_without_a_whole_step_is_refused() -> None:
    with pytest.raises(DataError, match=r"no step ends within data.max_sample_tokens = 2"):
        build({"prompt": "a", "completions": ["bcd"], "labels": [True]}, max_sample_tokens=2)
