"""Tests of rows that are token ids already."""

from __future__ import annotations

import copy

import pytest
import torch

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_transformers.preferences.preferences import LabelledSample, Pair, build_preferences, build_unpaired

ROW = {"prompt_ids": [7, 0], "chosen_ids": [2, 3], "rejected_ids": [4]}
PAIR = Pair(Sample((7, 0, 2, 3), (False, False, True, True)), Sample((7, 0, 4), (False, False, True)))


def build(source, tokenizer, pipeline=build_preferences, **options):
    return pipeline(source, tokenizer, DataConfig(**options), max_length=10)


@pytest.mark.parametrize("row", [
    ROW,
    {"prompt_input_ids": [7, 0], "chosen_input_ids": [2, 3], "rejected_input_ids": [4]},  # of older versions of TRL
    {"chosen_ids": [7, 0, 2, 3], "rejected_ids": [7, 0, 4]},  # the prompt is what both begin with
    {**ROW, "prompt": None, "chosen": "text beside the ids", "rejected": "text"},
    {key: torch.tensor(value) for key, value in ROW.items()},
])  # fmt: skip
def test_token_ids_of_a_row_are_used_unchanged(row, char_tokenizer):
    before = copy.deepcopy(row)
    assert build([row], char_tokenizer) == [PAIR]
    assert str(row) == str(before)


def test_each_answer_keeps_a_token_when_one_begins_the_other(char_tokenizer):
    (pair,) = build([{"chosen_ids": [5, 6], "rejected_ids": [5, 6, 7]}], char_tokenizer)
    assert [sample.action_mask for sample in (pair.chosen, pair.rejected)] == [(False, True), (False, True, True)]


def test_prompts_and_answers_are_truncated(char_tokenizer):
    (pair,) = build([ROW], char_tokenizer, max_prompt_tokens=1, max_sample_tokens=2)
    assert pair.chosen == Sample((0, 2), (False, True), ended=False, has_whole_prompt=False)
    assert pair.rejected == Sample((0, 4), (False, True), has_whole_prompt=False)
    (pair,) = build([{**ROW, "rejected_ids": [*range(9)]}], char_tokenizer)  # the context is 10
    assert pair.rejected.tokens == (7, 0, 0, 1, 2, 3, 4, 5, 6, 7)


def test_labelled_answers_may_be_given_as_token_ids(char_tokenizer):
    row = {"prompt_ids": [7], "completion_ids": [2, 3], "label": True}
    assert build([row], char_tokenizer, build_unpaired) == [
        LabelledSample(Sample((7, 2, 3), (False, True, True)), label=True)
    ]
    assert build([ROW], char_tokenizer, build_unpaired) == [PAIR]


def test_log_probs_of_a_reference_come_with_the_row(char_tokenizer):
    rows = [{**ROW, "ref_chosen_logps": -2.5, "ref_rejected_logps": -1}, ROW]
    assert [pair.ref_logprobs for pair in build(rows, char_tokenizer)] == [(-2.5, -1.0), None]


@pytest.mark.parametrize(("row", "message"), [
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, r"samples\[1\]: is text, but samples\[0\] is token ids"),
    ({**ROW, "chosen_ids": [99]}, r"samples\[1\]: 'chosen_ids' is \[99\]; it must be a list of token ids .* to 31"),
    ({**ROW, "prompt_ids": [True]}, r"samples\[1\]: 'prompt_ids' is \[True\]"),
    ({**ROW, "ref_chosen_logps": -1.0}, r"samples\[1\]: 'ref_rejected_logps' is None; it must be the log-prob"),
])  # fmt: skip
def test_a_malformed_row_is_named_with_its_index(row, message, char_tokenizer):
    with pytest.raises(DataError, match=message):
        build([ROW, row], char_tokenizer)
