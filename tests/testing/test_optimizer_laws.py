"""Every law of optimizers and schedules is broken by one that is wrong in just that, and kept by the built-in ones."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import optimizers, schedulers

OPTIMIZERS = [
    Wrong("parameter_groups_are_kept", "Regrouping", "differ from the groups it was built with"),
    Wrong("parameter_groups_are_kept", "Equal", "should keep weight_decay = 0.0; it has 0.1"),
    Wrong("steps_lower_a_convex_loss", "Ascending", "the loss should fall from"),
    Wrong("a_learning_rate_of_zero_changes_nothing", "Remembering", "shape [80, 64] should not change; it changes by"),
    Wrong(
        "weight_decay_is_read_from_each_group",
        "Decaying",
        "weight_decay = 0, but the vector changed",
    ),
    Wrong("weight_decay_is_read_from_each_group", "Undecayed", "the matrix should shrink; it does not"),
    Wrong("without_a_gradient_nothing_changes", "Drifting", "a parameter without a gradient changed"),
    Wrong("without_a_gradient_nothing_changes", "Frozen", "that had no gradient at first does not change"),
    Wrong("a_state_continues", "Slow", "of shape [80, 64] is off by"),
]
SCHEDULERS = [
    Wrong("every_group_has_the_reported_rate", "Lopsided", "at step 1 get_last_lr() is"),
    Wrong("without_warm_up_it_begins_with_lr", "Late", "it is 0.01; start with lr"),
    Wrong("warm_up_rises_to_lr", "Leaping", "it is 0, 0, 0, 0, 0, 0, 0, 0, 0.02"),
    Wrong("warm_up_rises_to_lr", "Low", "0.00875, 0.01; reach lr"),
    Wrong("rates_are_numbers_and_not_negative", "Negative", "at step 41 of 40 the rate is -"),
    Wrong("a_state_continues", "Forgetful", "a schedule restored at step 1 has the rate"),
]


@pytest.mark.parametrize("case", OPTIMIZERS, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_optimizer_breaks_the_law(case: Wrong) -> None:
    assert_broken(optimizers, case, wrong("optimizers", case.who))


@pytest.mark.parametrize("case", SCHEDULERS, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_schedule_breaks_the_law(case: Wrong) -> None:
    assert_broken(schedulers, case, wrong("schedulers", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(optimizers, OPTIMIZERS)
    assert_all_seen(schedulers, SCHEDULERS)


@pytest.mark.parametrize("law", laws_in(optimizers), ids=law_name)
def test_sgd_with_momentum_keeps_the_law(law: Law) -> None:
    assert_kept(law, installed("optimizers", "rlcore:sgd", momentum=0.9, nesterov=True))


@pytest.mark.parametrize("law", laws_in(optimizers), ids=law_name)
@pytest.mark.usefixtures("wrong_site")
def test_the_law_of_weight_decay_does_not_apply_to_an_optimizer_without_it(law: Law) -> None:
    assert_kept(law, wrong("optimizers", "undecaying"), but=["weight_decay_is_read_from_each_group"])


@pytest.mark.parametrize("law", laws_in(schedulers), ids=law_name)
def test_a_schedule_with_a_level_part_keeps_the_law(law: Law) -> None:
    assert_kept(law, installed("schedulers", "rlcore:warmup_stable_decay", num_decay_steps=5))


@pytest.mark.parametrize("law", laws_in(schedulers), ids=law_name)
@pytest.mark.usefixtures("wrong_site")
def test_the_law_of_warm_up_does_not_apply_to_a_schedule_without_it(law: Law) -> None:
    assert_kept(law, wrong("schedulers", "no_warm_up"), but=["warm_up_rises_to_lr"])
