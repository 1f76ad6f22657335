"""Every law of architectures is broken by one that is wrong in just that, and kept by the right ones."""

from __future__ import annotations

from typing import Any

import pytest
from laws_held import Wrong, assert_all_seen, assert_broken, assert_kept, law_name
from sites import installed, wrong

from rlcore_testing import Law
from rlcore_testing.law import laws_in
from rlcore_testing.laws import architecture_saving, architectures
from rlcore_testing.rig.reference_transformers import read_folders

FOLDER, STAYS, PLAIN = (
    "a_saved_folder_equals_its_model",
    "a_reference_does_not_change",
    "plain_transformers_loads_what_was_saved",
)
BACK, PLACE = "loading_restores_everything", "loading_changes_parameters_in_place"
TEMPERED = "temperature_divides_the_scored_logits"
ASKED, VALUES = "optional_outputs_come_on_request", "values_come_with_a_value_head"
GRADIENTS, FROZEN = "every_trainable_parameter_gets_a_gradient", "unfrozen_layers_are_the_top_ones"
FORWARD, DECODER = "score_goes_through_forward", "decoding_equals_scoring"
HEADS, STEERS = "outputs_of_a_head_are_returned_by_name", "advantages_are_those_of_the_head_that_steers"
LIMITS, MOVING = "context_length_and_eos_are_declared", "moving_moves_everything"
WRONG = [
    Wrong(FOLDER, "FolderAnew", "logprobs of a policy built from a folder should be"),
    Wrong(FOLDER, "TokenizerLess", "the folder's tokenizer should encode 'abz' as [0, 1, 25]; it gives [9]"),
    Wrong("a_reference_equals_the_start", "ReferenceAside", "`reference_score(...).logprobs` at first should be"),
    Wrong(STAYS, "ReferenceShared", "`reference_score` after the policy was trained should be"),
    Wrong(STAYS, "ReferenceRecording", "`reference_score` should record no graph"),
    Wrong(STAYS, "ReferenceReloaded", "`reference_score` after load_pretrained should be"),
    Wrong(BACK, "HeadsLost", "'value.head.rise.weight' after load_pretrained should be"),
    Wrong(PLACE, "LoadsCopies", "in load_pretrained; model.transformer.h.0.attn.c_attn.bias, model"),
    Wrong(PLACE, "Thawing", "with the same requires_grad, in load_pretrained; model.transformer.wte.weight did not"),
    Wrong("loading_raises_the_version", "LoadsUnnoticed", "policy.version should rise with load_pretrained"),
    Wrong("loading_raises_the_version", "Versionless", "an attribute that an updater raises; after `+= 1` it is 1"),
    Wrong(PLAIN, "SavesStart", "logits of plain transformers after loading the saved folder should be"),
    Wrong(PLAIN, "HeadsInside", "unexpected weights in the saved folder: value.value.head.fall.bias"),
    Wrong(PLAIN, "TokenizerUnsaved", "the saved tokenizer should encode 'abz'"),
    Wrong("the_module_excludes_the_reference", "ReferenceInside", "it differs in kept."),
    Wrong("the_seed_determines_random_weights", "Unseeded", "values of a policy built again after the same seed"),
    Wrong(
        "scores_are_those_of_plain_transformers", "Shifted", "`score(...).logprobs` (GPT2LMHeadModel, padding: left)"
    ),
    Wrong("padding_changes_nothing", "PaddingRead", "logprobs of the action tokens, padded on left to 19 columns,"),
    Wrong(ASKED, "LogitsAlways", "'logits' should be None if it was not requested"),
    Wrong(ASKED, "EntropyInBits", "`score(..., entropy=True).entropy` should be"),
    Wrong(VALUES, "ValuesEverywhere", "`score(...).values` elsewhere should be 0.0"),
    Wrong(VALUES, "ValuesNever", "values should be returned with value_head=True; they are None"),
    Wrong(VALUES, "ValuesMoveLogprobs", "logprobs with a value head should be"),
    Wrong(TEMPERED, "Untempered", "`score(...).logprobs` at temperature 0.6 should be"),
    Wrong(TEMPERED, "ReferenceUntempered", "`reference_score(...).logprobs` at temperature 0.6 should be"),
    Wrong("a_sequence_without_actions_changes_nothing", "RowsByPlace", "beside a sequence without action tokens"),
    Wrong(GRADIENTS, "Unused", "should get a gradient; idle.weight, idle.bias got none"),
    Wrong(GRADIENTS, "Recording", "under torch.no_grad() `score` should record no graph"),
    Wrong(FROZEN, "FreezesNothing", "with unfrozen_layers = 1 of 2, .model.transformer.wte.weight"),
    Wrong(FROZEN, "FreezesAll", "with unfrozen_layers = 1 the top block should train; none of its parameters does"),
    Wrong(FORWARD, "OwnModule", "`score` should call the module passed to policy.use_forward; it did not"),
    Wrong("training_step_does_not_change_scores", "StaleInStep", "`score` inside training_step should be"),
    Wrong(
        "everything_runs_in_autocast",
        "OutsideAutocast",
        "decoder.start should enter the autocast of policy.use_forward",
    ),
    Wrong(DECODER, "PaddingDecoded", "a decoder's log-probs should be"),
    Wrong(DECODER, "KeepsOthers", "a decoder's log-probs (only rows [0, 1, 3] kept after 3 tokens) should be"),
    Wrong(DECODER, "DecodesOtherValues", "a decoder's values should be"),
    Wrong(LIMITS, "Endless", "policy.eos_token_ids should include 30"),
    Wrong(LIMITS, "Boundless", "policy.max_length should be 64; it is 0"),
    Wrong(LIMITS, "OtherTokenizer", "policy.tokenizer should be the passed tokenizer"),
    Wrong(MOVING, "ReferenceLeft", "the reference should move with the policy; it still computes"),
    Wrong(MOVING, "ModuleLeft", "everything should move; value.head"),
    Wrong(HEADS, "HeadsNever", "should have the output 'ratings' of the head; it has []"),
    Wrong(HEADS, "HeadsEverywhere", "'ratings' elsewhere should be 0.0"),
    Wrong(HEADS, "HeadsOfOthers", "the tokens that a head receives should be"),
    Wrong("a_head_trains_with_the_policy", "HeadsFrozen", "without a gradient ['probe.fall.weight'"),
    Wrong("heads_are_saved", "HeadsUnsaved", "'ratings' after load_pretrained should be"),
    Wrong(STEERS, "SteersNever", "policy.steers should be True if a head has a method `advantages`"),
    Wrong(STEERS, "HighestAdvantage", "a decoder's advantage of token 0"),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "top layers": {"unfrozen_layers": 1, "value_layers": 1},
    "critic, recomputed": {"critic": "copy", "gradient_checkpointing": True},
    "heads only, padded": {"unfrozen_layers": 0, "speed": {"packing": False}},
}


@pytest.mark.parametrize("case", WRONG, ids=str)
@pytest.mark.usefixtures("wrong_site")
def test_a_wrong_architecture_breaks_the_law(case: Wrong, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.who in {"HeadsInside", "TokenizerUnsaved"}:  # what a new process adds is seen with SavesStart
        monkeypatch.setattr(
            architecture_saving, "call_in_new_process", lambda function, arguments, what: read_folders(**arguments)
        )
    assert_broken(architectures, case, wrong("architectures", case.who))


def test_every_law_fails_for_at_least_one_wrong_component() -> None:
    assert_all_seen(architectures, WRONG)


@pytest.mark.parametrize("law", laws_in(architectures), ids=law_name)
def test_every_law_of_architectures_applies_to_those_of_the_core(law: Law) -> None:
    # That they keep them, as they are without options, is seen in test_own_packages.py.
    assert law.when(installed("architectures", "rlcore:causal_lm"))
    assert law.when(installed("architectures", "rlcore:seq2seq_lm")) == (law.name != FROZEN)


@pytest.mark.parametrize("law", [law for law in laws_in(architectures) if law.name != PLAIN], ids=law_name)
@pytest.mark.parametrize("name", [name for name in OPTIONS if "speed" not in OPTIONS[name]])
def test_seq2seq_lm_keeps_the_law_with_options(name: str, law: Law) -> None:
    assert_kept(law, installed("architectures", "rlcore:seq2seq_lm", **OPTIONS[name]), but=[FROZEN])


@pytest.mark.parametrize("law", [law for law in laws_in(architectures) if law.name != PLAIN], ids=law_name)
@pytest.mark.parametrize("name", OPTIONS)
def test_causal_lm_keeps_the_law_with_options(name: str, law: Law) -> None:
    assert_kept(law, installed("architectures", "rlcore:causal_lm", **OPTIONS[name]))


@pytest.mark.parametrize("law", [law for law in laws_in(architectures) if law.name != PLAIN], ids=law_name)
@pytest.mark.parametrize("name", ["mistral", "t5"])
@pytest.mark.usefixtures("wrong_site")
def test_an_architecture_is_tested_with_the_model_that_it_names(name: str, law: Law) -> None:
    assert_kept(law, wrong("architectures", name), but=["unfrozen_layers_are_the_top_ones"])
