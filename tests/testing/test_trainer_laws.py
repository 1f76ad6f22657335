"""Every law of trainers is seen to fail, for its own reason, and to hold for a trainer that is right."""

from __future__ import annotations

import pytest
from laws_held import Wrong, assert_broken, assert_kept, law_called, law_name
from sites import wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import trainers

WRONG = [
    Wrong("needs_and_budget_are_declared", "misspelt-need", "it has 'prompt'"),
    Wrong("needs_and_budget_are_declared", "needs-more", "expected a run with only reward_fn"),
    Wrong("needs_and_budget_are_declared", "unknown-budget", "it is {'iterations': 100}"),
    Wrong("needs_and_budget_are_declared", "counts-no-epochs", "does not count epochs"),
    Wrong("losses_are_finite", "not-a-number", "expected finite losses"),
    Wrong("losses_are_finite", "yields-tensors", "yielded loss/policy = tensor("),
    Wrong("losses_are_finite", "yields-nothing", "expected metrics from step 1"),
    Wrong("losses_are_finite", "names-badly", "yielded 'policy loss'"),
    Wrong("every_trainable_parameter_changes", "leaves-a-layer", "layers.0.mlp.up_proj.weight did not"),
    Wrong("frozen_parameters_stay", "thaws", "model.embed_tokens.weight"),
    Wrong("same_seed_same_numbers", "unseeded", "run.config.run.seed does not seed"),
    Wrong(
        "schedules_last_as_long_as_the_run", "counts-half-its-updates", "at least 0.000667 after step 1; it is 0.000333"
    ),
    Wrong("resume_is_exact", "forgets-the-optimizer", "step[2].loss/policy differ"),
    Wrong("resume_is_exact", "yields-mid-round", "step[1].loss/policy differ"),
    Wrong("resume_is_exact", "keeps-count-elsewhere", "step[3].loss/policy differ"),
    Wrong("resume_is_exact", "loses-what-it-loads", "checkpoint.trainer.rounds differ"),
    Wrong(
        "an_accepted_change_has_its_effect", "restores-its-options", "resumed with trainer.optimizer.max_grad_norm = "
    ),
    Wrong("stop_is_honoured_at_a_yield", "deaf", "it ended at step 4"),
    Wrong("stop_is_honoured_at_a_yield", "jumpy", "it raised KeyboardInterrupt"),
    Wrong("state_dict_is_plain", "holds-a-set", "state.seen is a builtins.set"),
    Wrong("state_dict_is_plain", "loses-what-it-loads", "state_dict().rounds differ: 3 in one, 0 in the other"),
    Wrong("events_come_in_order", "tells-nobody", "expected on_rollout before the first on_step; it was called never"),
    Wrong("events_come_in_order", "tells-too-much", "observed on_run_start, on_evaluate, on_step, on_step"),
    Wrong("padding_changes_nothing", "compares-with-pad", "padding token is EOS in this run"),
    Wrong("padding_changes_nothing", "stacks-itself", "padding token is EOS in this run"),
    Wrong("padding_changes_nothing", "averages-columns", "have more padding"),
    Wrong("padding_changes_nothing", "ranks-fillers", "have another filler row"),
    Wrong("two_processes_equal_one", "averages-fillers", "is with two processes and 7 rows"),
    Wrong("micro_batches_change_nothing", "averages-means", "with micro_batch_size = "),
    Wrong("two_processes_equal_one", "looks-at-its-share", "is with two processes"),
    Wrong("divided_weights_equal_whole_ones", "looks-at-its-share", "is with run.shard=fsdp on two processes"),
    Wrong(
        "divided_weights_equal_whole_ones",
        "wraps-its-policy",
        "SimpleNamespace does not implement",
    ),
    Wrong("the_temperature_divides_the_logits", "untempered", "is at gen.temperature = 2"),
    Wrong("every_token_of_the_reference_counts", "shifts-kl-left", "at the first token of each output"),
    Wrong("every_token_of_the_reference_counts", "shifts-kl-right", "at the last token of each output"),
    Wrong("it_learns", "uphill", "expected the mean reward to get clearly better"),
    Wrong("it_learns", "misorders", "in another order"),
    Wrong("it_learns", "unlearns", "expected the mean loss of the demonstrations to get clearly better"),
    Wrong("it_learns", "lowers-nothing", "lowers = 'loss/preference': no step yields a metric with that name"),
    Wrong("evaluation_changes_nothing", "evaluates-for-good", "must not leave the module in another mode"),
    Wrong("evaluation_changes_nothing", "evaluates-on-the-next", "must not leave the module in another mode"),
    Wrong("checkpoints_change_nothing", "saves-and-moves", "must not change the trainer's state"),
    Wrong(
        "a_bad_number_stops_the_run_or_is_counted", "saturates", "expected inf in one place (logprobs) to end the run"
    ),
    Wrong("a_bad_number_stops_the_run_or_is_counted", "steps-anyhow", "expected nan in one place (gradient)"),
    Wrong("a_bad_number_on_one_rank_stops_the_run_or_is_counted", "steps-anyhow", "in the gradient of one of two"),
]
OF_SAMPLES = {"the_temperature_divides_the_logits", "every_token_of_the_reference_counts"}
IN_PROCESSES = {
    "resume_is_exact", "two_processes_equal_one", "divided_weights_equal_whole_ones",
    "a_bad_number_on_one_rank_stops_the_run_or_is_counted",
}  # fmt: skip
WITHOUT_ORACLES = [law for law in laws_in(trainers) if not law.name.endswith("oracle")]
"""The others are seen to fail and to hold in test_oracle_laws.py."""

pytestmark = pytest.mark.usefixtures("wrong_site")


@pytest.mark.parametrize("case", WRONG, ids=str)
def test_a_wrong_trainer_breaks_the_law(case: Wrong) -> None:
    assert_broken(trainers, case, wrong("trainers", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert {law.name for law in WITHOUT_ORACLES} == {case.law for case in WRONG}


@pytest.mark.parametrize("law", WITHOUT_ORACLES, ids=law_name)
def test_a_right_trainer_of_rollouts_keeps_the_law(law: Law) -> None:
    assert_kept(law, wrong("trainers", "right"))


@pytest.mark.parametrize("law", [law for law in WITHOUT_ORACLES if law.name not in IN_PROCESSES], ids=law_name)
def test_a_right_trainer_of_demonstrations_keeps_the_law(law: Law) -> None:
    assert_kept(law, wrong("trainers", "imitates"), but=OF_SAMPLES)


@pytest.mark.parametrize("name", sorted(OF_SAMPLES))
def test_a_right_trainer_with_a_reference_keeps_the_law(name: str) -> None:
    assert_kept(law_called(trainers, name), wrong("trainers", "keeps-near"))


@pytest.mark.parametrize("name", ["shrinks", "rests"])
def test_a_stop_does_not_depend_on_data_or_a_forward_pass(name: str) -> None:
    law_called(trainers, "stop_is_honoured_at_a_yield")(wrong("trainers", name))


def test_a_trainer_may_declare_the_metric_that_learning_lowers() -> None:
    law_called(trainers, "it_learns")(wrong("trainers", "prefers"))


RAGGED = {
    "it_learns",
    "losses_are_finite",
    "padding_changes_nothing",
    "micro_batches_change_nothing",
    "two_processes_equal_one",
}


@pytest.mark.parametrize("law", [law for law in laws_in(trainers) if law.name in RAGGED], ids=law_name)
def test_a_right_trainer_of_ragged_groups_keeps_the_law(law: Law) -> None:
    assert_kept(law, wrong("trainers", "ranks"))
