"""Templates and end tokens as models are published with them: turns end with one token, at which sampling stops."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import build_sequence_scorer
from rlcore_reward.step_scorer import build_step_scorer
from rlcore_testing.small import EOS, PAD, make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig
from rlcore_transformers.models.seq2seq import build_seq2seq_lm

NEW = 28  # "!"


@pytest.fixture
def folder(tmp_path):
    def save(model):
        model.save_pretrained(tmp_path / "model")
        make_tokenizer().save_pretrained(tmp_path / "model")
        return str(tmp_path / "model")

    return save


def with_eos(token):
    tokenizer = make_tokenizer()
    tokenizer.eos_token = token
    return tokenizer


def ids_in(folder, file, name="eos_token_id"):
    return json.loads((folder / file).read_text()).get(name)


STATED = {"eos_token": "!"}
LORA = {"type": "lora", "r": 2}
ARCHITECTURES = {
    "gpt2": (make_gpt2, build_causal_lm, CausalLMConfig(), [NEW, EOS]),
    "llama": (make_llama, build_causal_lm, CausalLMConfig(), [NEW, EOS]),
    "t5": (make_t5, build_seq2seq_lm, Seq2SeqLMConfig(), NEW),
    "bart": (make_bart, build_seq2seq_lm, Seq2SeqLMConfig(), NEW),
    "scorer": (make_gpt2, build_sequence_scorer, SequenceScorerConfig(), [NEW, EOS]),
    "step scorer": (make_llama, build_step_scorer, SequenceScorerConfig(), [NEW, EOS]),
}
"""What makes a model, what builds it, its options, and EOS in the configuration of its exports."""


@pytest.mark.parametrize(
    "name", [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES]
)
def test_checkpoints_and_exports_end_texts_where_the_run_does(folder, tmp_path, name):
    make, build, options, expected = ARCHITECTURES[name]
    learner = build(folder(make()), options, tokenizer=STATED)
    for write in (learner.save_pretrained, learner.export, learner.save_start):
        place = tmp_path / write.__name__
        place.mkdir()
        write(place)
        assert ids_in(place, "config.json") == expected
        if "scorer" not in name:  # which generate nothing
            assert ids_in(place, "generation_config.json") == [NEW, EOS]
            assert learner.eos_token_ids == (NEW, EOS)
        again = build(str(place), options)  # with the tokenizer of the export
        assert again.tokenizer.eos_token == "!"
        assert again.model.config.eos_token_id == expected


def test_plain_transformers_stops_at_the_new_token_of_an_export(folder, tmp_path):
    policy = build_causal_lm(folder(make_gpt2()), CausalLMConfig(), tokenizer=STATED)
    hidden = policy.model(torch.tensor([[0]]), output_hidden_states=True).hidden_states[-1][0, 0].detach()
    policy.model.get_output_embeddings().weight.data[NEW] = 1000 * hidden  # the likeliest token after token 0
    policy.export(tmp_path / "out")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "out").generate(
        torch.tensor([[0]]), max_new_tokens=5, do_sample=False
    )
    assert found[0].tolist() == [0, NEW]


@pytest.mark.parametrize("given", [STATED, with_eos("!"), "path"], ids=["option", "object", "path"])
def test_each_way_to_change_a_tokenizer_changes_the_configuration(folder, tmp_path, given):
    if given == "path":
        with_eos("!").save_pretrained(tmp_path / "other")
        given = str(tmp_path / "other")
    for model in (make_gpt2(), folder(make_gpt2())):
        if given is STATED and not isinstance(model, str):
            continue  # a model in memory comes without a tokenizer
        policy = build_causal_lm(model, CausalLMConfig(), tokenizer=given)
        assert policy.model.config.eos_token_id == policy.model.generation_config.eos_token_id == [NEW, EOS]


@pytest.mark.slow
def test_an_adapter_states_where_texts_end_beside_it_and_in_its_merged_export(folder, tmp_path):
    policy = build_causal_lm(folder(make_llama()), CausalLMConfig(peft=LORA), tokenizer=STATED)
    policy.save_pretrained(tmp_path / "checkpoint")
    assert GenerationConfig.from_pretrained(tmp_path / "checkpoint").eos_token_id == [NEW, EOS]
    assert not (tmp_path / "checkpoint/config.json").exists()
    policy.export(tmp_path / "export")
    assert ids_in(tmp_path / "export", "config.json") == [NEW, EOS]
    assert ids_in(tmp_path / "export", "generation_config.json") == [NEW, EOS]


@pytest.mark.parametrize(
    ("stated", "config", "generation"),
    [
        ({}, (EOS, EOS, PAD), (EOS, EOS, PAD)),
        ({"bos_token": "a"}, (0, EOS, PAD), (0, EOS, PAD)),
        ({"pad_token": "b"}, (EOS, EOS, 1), (EOS, EOS, 1)),
        ({"eos_token": "c", "pad_token": "c"}, (EOS, [2, EOS], 2), (EOS, [2, EOS], 2)),
        ({"eos_token": "</s>"}, (EOS, EOS, PAD), (EOS, EOS, PAD)),  # as it was
    ],
)  # fmt: skip
def test_every_special_token_that_is_stated_is_carried_over(folder, stated, config, generation):
    model = build_causal_lm(folder(make_gpt2()), CausalLMConfig(), tokenizer=stated or None).model
    for each, expected in ((model.config, config), (model.generation_config, generation)):
        assert (each.bos_token_id, each.eos_token_id, each.pad_token_id) == expected


def test_tokens_that_are_there_stay_as_they_are(folder):
    model = make_gpt2()
    model.config.pad_token_id = None
    model.config.eos_token_id = model.generation_config.eos_token_id = [7, EOS]  # such as those of Llama 3
    model.generation_config.pad_token_id = None
    built = build_causal_lm(folder(model), CausalLMConfig()).model
    assert built.config.eos_token_id == built.generation_config.eos_token_id == [7, EOS]
    assert built.config.pad_token_id is None  # the tokenizer's own is not an option of the run
    other = build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer(pad_is_eos=True)).model
    assert other.config.pad_token_id == PAD  # padding by EOS tells nothing


def test_a_model_that_is_built_twice_has_each_token_once(folder):
    model = make_gpt2()
    for _ in range(2):
        build_causal_lm(model, CausalLMConfig(), tokenizer=with_eos("!"))
    assert isinstance(model.config, PretrainedConfig)
    assert model.config.eos_token_id == model.generation_config.eos_token_id == [NEW, EOS]
