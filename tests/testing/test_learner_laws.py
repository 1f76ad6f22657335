"""Every law of other learners is broken by one that is wrong in just that, and kept by one that is right."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import wrong

from rlcore_testing import Law, LawBroken
from rlcore_testing.cases import cases
from rlcore_testing.law import laws_in
from rlcore_testing.laws import learners

LOADS = "loading_restores_everything"
WRONG = [
    Wrong(LOADS, "ForgetsBias", "should restore every weight; bias differ"),
    Wrong(LOADS, "Replaces", "should stay the same objects"),
    Wrong(LOADS, "Unnoticed", "version should rise with load_pretrained; it stays 0"),
    Wrong("an_exported_folder_can_be_trained_again", "OtherExport", "should have the same parameters"),
    Wrong("something_trains", "Frozen", "some parameter should require a gradient"),
    Wrong("moving_moves_everything", "Remains", "everything should move; weight, bias"),
]


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_learner_breaks_the_law(case: Wrong) -> None:
    assert_broken(learners, case, wrong("architectures", f"learns-{case.who}"))


@pytest.mark.parametrize("law", laws_in(learners), ids=law_name)
@pytest.mark.usefixtures("wrong_site")
def test_each_law_names_an_example_that_differs_in_every_call(law: Law) -> None:
    with pytest.raises(LawBroken, match="two calls of its `example_model` return different weights"):
        law(wrong("architectures", "learns-Unseeded"))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(learners, WRONG)


@pytest.mark.parametrize("law", laws_in(learners), ids=law_name)
@pytest.mark.usefixtures("wrong_site")
def test_a_right_learner_keeps_the_law(law: Law) -> None:
    assert_kept(law, wrong("architectures", "learns-Toy"))


@pytest.mark.usefixtures("wrong_site")
def test_a_learner_is_held_to_the_laws_of_learners_alone() -> None:
    names = {case.law.name for case in cases("acme-wrong") if case.id.startswith("architecture-learns-Toy-")}
    assert {law.name for law in laws_in(learners)} <= names
    assert "decoding_equals_scoring" not in names
