"""Every law of samplers is broken by a sampler that is wrong in just that, and kept by the right ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_called, law_name
from scipy import stats
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import samplers
from rlcore_testing.rig.sampler_calls import chi_square_probability

GREEDY, CHANCE = "greedy_equals_transformers", "frequencies_match_the_policy"
MARKS, KINDS = "masks_select_the_continuation", "tensors_have_the_right_dtype_and_shape"
CLOSED = "it_samples_again_after_close"
ALLOWED = "only_allowed_tokens_are_sampled"
SEED = "a_row_depends_on_its_own_seed"
EOS, LEFT = "eos_ends_and_is_kept", "the_policy_is_not_changed"
WRONG = [
    Wrong("row_i_continues_prompt_i", "sorted_rows", "sequence 0 should begin with its prompt's tokens [7, 4, 11"),
    Wrong("row_i_continues_prompt_i", "one_short", "8 prompts should give as many sequences; there are 7"),
    Wrong("row_i_continues_prompt_i", "unmarked_first", "`action_mask` does not select are [7, 4, 11, 11, 14, "),
    Wrong(MARKS, "prompt_marked", "the real tokens after its prompt; it is True at [1, 2"),
    Wrong(MARKS, "garbage_real", "`action_mask` of sequence 0 should be True at"),
    Wrong(KINDS, "int_ended", "'ended' should be torch.bool of (8,) on cpu; it is torch.int64"),
    Wrong(KINDS, "with_gradient", "'logprobs' should require no gradient"),
    Wrong(GREEDY, "never_greedy", "GPT2LMHeadModel, prompt [7, 4, 11, 11, 14], EOS []"),
    Wrong(GREEDY, "positions_of_padding", "count positions of real tokens only"),
    Wrong(CHANCE, "first_token_again", "frequencies should follow the policy's probabilities"),
    Wrong("temperature_divides_the_logits", "tempered_twice", "with {'temperature': 0.6}: frequencies"),
    Wrong("temperature_divides_the_logits", "tempered_not", "with {'temperature': 0.6}: frequencies"),
    Wrong("top_k_samples_the_likeliest", "top_k_one_more", "samples are tokens that are not allowed"),
    Wrong("top_p_samples_the_likeliest", "top_p_not", "samples are tokens that are not allowed"),
    Wrong("top_p_samples_the_likeliest", "top_p_one_short", "frequencies should follow"),
    Wrong("logprobs_are_tempered_only", "truncated_logprobs", "with {'temperature': 1.4, 'top_k': 8"),
    Wrong("logprobs_are_tempered_only", "untempered_logprobs", "with {'temperature': 0.7}, 'logprobs' of an action"),
    Wrong("logprobs_are_tempered_only", "shifted_logprobs", "with defaults, 'logprobs' of an action token"),
    Wrong("values_equal_scoring", "shifted_values", "'values' of an action token should be"),
    Wrong(EOS, "eos_trimmed", "keep EOS as the last action token"),
    Wrong(EOS, "never_ended", "should be True (EOS is any of"),
    Wrong(EOS, "ended_when_cut", "should be False (EOS is any of"),
    Wrong(EOS, "pad_counts_as_end", "should be False (EOS is any of"),
    Wrong("the_policys_eos_tokens_end", "own_eos_only", "should end with the first of policy.eos_token_ids"),
    Wrong("limits_are_honoured", "one_too_many", "should get 7 new ones with max_new_tokens = 7"),
    Wrong("limits_are_honoured", "ended_when_cut", "it got 7, `ended` True"),
    Wrong("eos_waits_for_min_new_tokens", "no_minimum", "should contain no EOS"),
    Wrong("stop_sequences_end", "stops_in_prompt", "of prompt 0 should end with the first"),
    Wrong("stop_sequences_end", "stops_ignored", "(`ended` False) of prompt"),
    Wrong("only_the_generator_matters", "global_numbers", "take every random number from `generator`"),
    Wrong("the_generator_advances", "seed_again", "should sample other tokens"),
    Wrong(SEED, "seeds_ignored", "take the random numbers of row i from row_seeds[i] alone"),
    Wrong(SEED, "first_seed_only", "take the random numbers of row i from row_seeds[i] alone"),
    Wrong(SEED, "one_seed_for_all", "other seeds should sample other tokens"),
    Wrong(SEED, "few_seeds", "frequencies should follow"),
    Wrong("a_generator_may_be_left_out", "needs_generator", "'NoneType' object has no", error=AttributeError),
    Wrong("batches_change_nothing", "unsorted_batches", "restore the order of the prompts"),
    Wrong("beta_adds_advantages_to_the_logits", "beta_ignored", "with {'beta': 4.0}: frequencies should follow"),
    Wrong(ALLOWED, "mask_ignored", "where logit_mask is False"),
    Wrong(ALLOWED, "mask_transposed", "where logit_mask is False"),
    Wrong(ALLOWED, "mask_when_drawing_only", "at temperature 0 token"),
    Wrong(ALLOWED, "mask_by_likeliest", "frequencies should follow"),
    Wrong("it_follows_the_weights", "stale_copy", "after an update of the policy the sampler should sample from the"),
    Wrong("it_follows_the_weights", "renewed_once", "after `policy.load_pretrained` the sampler should sample from"),
    Wrong(CLOSED, "closed_for_good", "after close() the sampler should sample"),
    Wrong(LEFT, "leaves_evaluating", "modes of the policy's module should be the same"),
    Wrong(LEFT, "leaves_frozen", "requires_grad of the policy's module should be the same"),
    Wrong(LEFT, "leaves_no_grad", "torch's grad mode should stay on"),
]


@pytest.fixture(autouse=True)
def grad_mode() -> Iterator[None]:
    yield
    torch.set_grad_enabled(True)


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_sampler_breaks_the_law(case: Wrong) -> None:
    assert_broken(samplers, case, wrong("samplers", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(samplers, WRONG)


@pytest.mark.parametrize("law", laws_in(samplers), ids=law_name)
def test_the_built_in_sampler_keeps_the_law(law: Law) -> None:
    assert_kept(law, installed("samplers", "rlcore:default"), but=(CLOSED,))


OF_THE_POLICY = (
    "batches_change_nothing",
    "beta_adds_advantages_to_the_logits",
    "frequencies_match_the_policy",
    "greedy_equals_transformers",
    "temperature_divides_the_logits",
    "the_generator_advances",
    "top_k_samples_the_likeliest",
    "top_p_samples_the_likeliest",
)
"""Laws that are not held against a sampler with `draws_from_policy = False`."""


@pytest.mark.parametrize("law", laws_in(samplers), ids=law_name)
@pytest.mark.usefixtures("wrong_site")
def test_best_of_two_keeps_the_laws_that_are_about_it(law: Law) -> None:
    assert_kept(law, wrong("samplers", "best_of_two"), but=(*OF_THE_POLICY, ALLOWED, SEED, CLOSED))  # it takes no mask


@pytest.mark.usefixtures("wrong_site")
def test_a_sampler_may_refuse_beta_in_place_of_ignoring_it() -> None:
    assert_kept(law_called(samplers, "beta_adds_advantages_to_the_logits"), wrong("samplers", "no_beta"))


@pytest.mark.usefixtures("wrong_site")
def test_the_law_of_frequencies_fails_for_best_of_two_unless_it_declares_itself() -> None:
    subject = wrong("samplers", "best_of_two")
    chance = law_called(samplers, CHANCE)
    assert not chance.when(subject)
    with pytest.raises(AssertionError, match="frequencies should follow"):
        chance(subject)


def test_the_probability_of_frequencies_is_that_of_pearsons_test() -> None:
    counts = torch.tensor([30.0, 14.0, 34.0, 45.0, 57.0, 20.0]).double()
    seen = chi_square_probability(counts, torch.full((6,), 1 / 6).double())
    assert seen == pytest.approx(float(stats.chisquare(counts.numpy()).pvalue), rel=1e-6)


def test_rare_outcomes_are_pooled() -> None:
    """Of 100, 90 of one and 10 of the others together are due: (88 - 90)^2 / 90 + (12 - 10)^2 / 10 = 4 / 9."""
    counts = torch.tensor([1.0, 88.0, 2.0, 9.0]).double()
    seen = chi_square_probability(counts, torch.tensor([0.03, 0.9, 0.03, 0.04]).double())
    assert seen == pytest.approx(0.5050, abs=1e-4)  # one degree of freedom: erfc(sqrt(4 / 9 / 2))
