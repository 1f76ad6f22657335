"""Each law about pipelines is broken by one that breaks just it, and kept by right ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law, LawBroken
from rlcore_testing.law import laws_in
from rlcore_testing.laws import pipelines

WRONG = [
    Wrong("it_reads_rows", "reads_none", "rows are (question, answer, score)"),
    Wrong("it_reads_rows", "dropping", "10 rows give 9 entries"),
    Wrong("entries_are_complete", "textless", "entry 0 has the text b'ab'"),
    Wrong("entries_are_complete", "empty", "entry 0 has no tokens"),
    Wrong("entries_are_complete", "short_mask", "entry 0 has 5 tokens and a mask of 4"),
    Wrong("entries_are_complete", "numbers", "entry 0 has the mask (0, 0, 1, 1, 1)"),
    Wrong("entries_are_complete", "all_chosen", "entry 0 marks its first token"),
    Wrong("entries_are_complete", "none_chosen", "entry 0 marks no token"),
    Wrong("entries_are_complete", "half_chosen", "entry 0 marks no token"),
    Wrong("tokens_are_ints", "numpy_tokens", "entry 0 has tokens of type int64"),
    Wrong("tokens_are_ints", "listed", "entry 0 has its tokens in a list"),
    Wrong("tokens_are_ints", "beyond", "entry 0 has the ids [99]; the tokenizer's last id is 31"),
    Wrong("rows_keep_their_order", "sorting", "but with reversed rows"),
    Wrong("rows_do_not_depend_on_each_other", "padding", "but alone"),
    Wrong("same_rows_same_entries", "shuffling", "but the second time"),
    Wrong("the_source_is_not_changed", "spoiling", "it changes a row to '' from 'ab'"),
    Wrong("columns_are_kept", "forgetful", "has the columns {'answer': None, 'notes_on_row': None}"),
    Wrong("long_rows_are_truncated_or_refused", "endless", "an entry has 20 tokens with max_length = 10"),
    Wrong("long_rows_are_truncated_or_refused", "asserting", "a row longer than max_length raises AssertionError"),
    Wrong("an_empty_source_is_refused_clearly", "taking_nothing", "an empty source gives []"),
    Wrong("an_empty_source_is_refused_clearly", "indexing", "an empty source raises IndexError"),
    Wrong("an_empty_source_is_refused_clearly", "vague", "'the input is empty; at least one prompt is needed'"),
    Wrong("padding_with_eos_changes_nothing", "stripping", "with a tokenizer that pads with EOS"),
]
RIGHT = (
    "acme-wrong:right",
    "acme-wrong:triples",
    "acme-wrong:ranked",
    "acme-wrong:ranked_in_lists",
    "rlcore:prompts",
    "rlcore:samples",
)
FOLLOWING = {
    ("rows_keep_their_order", "dropping"), ("rows_do_not_depend_on_each_other", "dropping"),
    ("rows_keep_their_order", "shuffling"), ("rows_do_not_depend_on_each_other", "sorting"),
    ("rows_do_not_depend_on_each_other", "shuffling"), ("padding_with_eos_changes_nothing", "shuffling"),
    ("columns_are_kept", "sorting"), ("columns_are_kept", "shuffling"),
}  # fmt: skip
"""What breaks a law because it breaks another."""
pytestmark = pytest.mark.usefixtures("wrong_site")


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_pipeline_breaks_the_law(case: Wrong) -> None:
    assert_broken(pipelines, case, wrong("pipelines", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(pipelines, WRONG)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("law", laws_in(pipelines), ids=law_name)
def test_a_right_pipeline_keeps_the_law(law: Law, name: str) -> None:
    assert_kept(law, installed("pipelines", name))


@pytest.mark.parametrize("law", laws_in(pipelines), ids=law_name)
def test_a_wrong_pipeline_breaks_no_other_law(law: Law) -> None:
    broken = set()
    for who in {case.who for case in WRONG} - {"reads_none"}:
        try:
            law(wrong("pipelines", who))
        except LawBroken:
            broken.add((law.name, who))
    wanted = {(case.law, case.who) for case in WRONG if case.who != "reads_none"} | FOLLOWING
    assert broken == {pair for pair in wanted if pair[0] == law.name}
