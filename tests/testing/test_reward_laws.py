"""Each law about rewards is broken by one that breaks it, and kept by right ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import wrong

from rlcore_testing import Law, LawBroken
from rlcore_testing.law import laws_in
from rlcore_testing.laws import rewards

WRONG = [
    Wrong("one_number_for_each_output", "too_few", "returned 11 values for 12 samples"),
    Wrong("one_number_for_each_output", "text", "returned 'good' for sample 0, which is a str, not a number"),
    Wrong("one_number_for_each_output", "infinite", "returned inf for sample 3, which is not a finite number"),
    Wrong("some_output_gets_a_number", "silent", "it returns None for each of 'yes, thanks'"),
    Wrong("same_inputs_same_numbers", "random_one", "in a second call"),
    Wrong("another_process_same_numbers", "hashing", "in another process"),
    Wrong("the_order_of_a_batch_changes_nothing", "ranked", "'yes, thanks' gets 0.0, but in the reversed batch 11.0"),
    Wrong(
        "splitting_a_batch_changes_nothing", "whitened", "but in a batch of its own 0.0; score each output by itself"
    ),
    Wrong("an_empty_output_is_accepted", "first_letter", "raised IndexError: string index out of range"),
    Wrong("an_empty_output_is_accepted", "averaging", "raised ZeroDivisionError"),
    Wrong("columns_it_does_not_take_change_nothing", "counting_columns", "with further columns"),
    Wrong("arguments_are_not_changed", "spoiling_columns", "it changes the columns"),
    Wrong("arguments_are_not_changed", "spoiling_tokens", "it changes output_tokens"),
    Wrong("it_scores_again_after_close", "closed_for_good", "'yes, thanks' gets 11.0, but after close() 0.0"),
]
RIGHT = ("right", "right_later", "counting", "closing")
pytestmark = pytest.mark.usefixtures("wrong_site")


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_reward_breaks_the_law(case: Wrong) -> None:
    assert_broken(rewards, case, wrong("rewards", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(rewards, WRONG)


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("law", laws_in(rewards), ids=law_name)
def test_a_right_reward_keeps_the_law(law: Law, name: str) -> None:
    assert_kept(law, wrong("rewards", name), but=() if name == "closing" else ("it_scores_again_after_close",))


@pytest.mark.parametrize(
    ("who", "laws"),
    [
        ("whitened", {"splitting_a_batch_changes_nothing"}),
        ("silent", {"some_output_gets_a_number"}),
        ("first_letter", {"an_empty_output_is_accepted"}),
        ("counting_columns", {"columns_it_does_not_take_change_nothing"}),
        ("spoiling_columns", {"arguments_are_not_changed"}),
    ],
)
def test_a_wrong_reward_breaks_no_other_law(who: str, laws: set[str]) -> None:
    broken = set()
    for law in laws_in(rewards):
        if law.name == "another_process_same_numbers" or not law.when(wrong("rewards", who)):  # the first takes seconds
            continue
        try:
            law(wrong("rewards", who))
        except LawBroken:
            broken.add(law.name)
    assert broken == laws


def test_options_reach_the_reward() -> None:
    (law,) = (law for law in laws_in(rewards) if law.name == "some_output_gets_a_number")
    law(wrong("rewards", "counting", word="please"))
    assert rewards._scores(wrong("rewards", "counting", word="no"), ("no no", "yes")) == [2.0, 0.0]
