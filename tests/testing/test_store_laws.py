"""Every law of rollout stores is broken by a store that is wrong in just that, and kept by the right ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import stores

WRONG = [
    Wrong("batches_come_back_in_order", "Reversed", "'tokens' of sequence 0 should be"),
    Wrong("batches_of_different_widths_come_back_whole", "Narrow", "'tokens' of sequence 3 should be"),
    Wrong("an_empty_store_raises", "Returning", "a new store should raise rlcore.errors.EmptyStore; it returned"),
    Wrong("an_empty_store_raises", "KeyErroring", "it raised KeyError: 'nothing here'"),
    Wrong("take_empties_the_store", "Remembering", "should have 3 sequences; it has 6"),
    Wrong("its_length_counts_sequences", "CountingBatches", "it was 0, 1, 2, 0"),
    Wrong("types_are_kept", "Widening", "'bool_each' should be torch.bool; it is torch.float32"),
    Wrong("nan_and_infinity_are_kept", "Cleaning", "of sequence 0 should be [nan"),
    Wrong("hundreds_of_batches_are_kept", "Bounded", "should have 200 sequences; it has 100"),
    Wrong("taken_batches_are_not_changed", "Reusing", "memory from `take` that the store does not write to again"),
    Wrong("appended_batches_are_not_changed", "Spoiling", "the batch that was appended: 'scores'"),
    Wrong("two_stores_share_nothing", "Shared", "should have 3 sequences; it has 6"),
    Wrong("same_appends_same_take", "Shuffling", "a second store after another seed: "),
    Wrong("same_appends_same_take", "Drawing", "the global random state of python should stay"),
    Wrong("same_appends_same_take", "DrawingFromNumpy", "the global random state of numpy should stay"),
    Wrong("state_dict_does_not_change_the_store", "Draining", "should have 9 sequences; it has 3"),
    Wrong("state_dict_does_not_change_the_store", "Growing", "should have 6 sequences; it has 9"),
    Wrong("a_loaded_state_replaces_the_sequences", "Adding", "len should be 3 after `load_state_dict`; it was 9"),
    Wrong("a_state_continues_in_a_new_process", "Elsewhere", "len should be 6 after"),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_store_breaks_the_law(case: Wrong) -> None:
    assert_broken(stores, case, wrong("rollout_stores", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(stores, WRONG)


@pytest.mark.parametrize("law", laws_in(stores), ids=law_name)
def test_the_store_in_memory_keeps_the_law(law: Law) -> None:
    assert_kept(law, installed("rollout_stores", "rlcore:memory"))
