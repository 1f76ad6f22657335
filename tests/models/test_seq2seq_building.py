"""Tests of building encoder-decoder policies: trained and shared weights, valid combinations, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from seq2seq_making import CONFIGS, PROMPTS, build, dialogues, habitual, make
from transformers import ProphetNetConfig

import rlcore
from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.plugins.registry import registries
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.training.run_components import fitting_architecture
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import make_bart, make_gpt2, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig


@pytest.mark.parametrize("name", CONFIGS)
def test_with_unfrozen_layers_the_decoders_top_blocks_train_and_no_other_part(name: str) -> None:
    policy = build(make(name), unfrozen_layers=2)
    blocks = decoder_blocks(policy.model)
    assert len(blocks) == 4
    top = {id(p) for block in blocks[2:] for p in block.parameters()}
    assert all(p.requires_grad for block in blocks[2:] for p in block.parameters())
    below = [*policy.model.get_encoder().parameters(), *blocks[:2].parameters()]
    assert not any(p.requires_grad for p in [*below, policy.model.get_input_embeddings().weight])
    others = [n for n, p in policy.model.named_parameters() if p.requires_grad and id(p) not in top]
    assert all("norm" in part or "lm_head" in part for part in others)


@pytest.mark.parametrize("unfrozen", [None, 0, 1, 4])
@pytest.mark.parametrize("name", ["t5", "t5, version 1.1", "bart"])
def test_the_reference_keeps_the_starting_weights(name: str, unfrozen: int | None) -> None:
    policy, batch = build(make(name), unfrozen_layers=unfrozen, reference=True), dialogues("both")
    with torch.no_grad():
        before = policy.score(batch).logprobs
        assert torch.equal(policy.reference_score(batch).logprobs, before)
        for parameter in policy.module.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        assert torch.equal(policy.reference_score(batch).logprobs, before)
        assert (unfrozen == 0) == torch.equal(policy.score(batch).logprobs, before)


def test_the_reference_shares_the_encoder_with_the_policy() -> None:
    policy = build(make("bart"), unfrozen_layers=1, reference=True)
    own, kept = (dict(model.get_encoder().named_parameters()) for model in (policy.model, policy.reference))
    assert all(kept[name] is parameter for name, parameter in own.items())


def test_a_later_run_of_the_same_model_trains_what_an_earlier_one_froze() -> None:
    model = make("t5")
    build(model, unfrozen_layers=1)
    assert all(p.requires_grad for p in build(model).module.parameters())


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_logits_are_computed_for_chosen_tokens_only(name: str) -> None:
    policy, batch, shapes = build(make(name), reference=True), dialogues(), []
    for model in (policy.model, policy.reference):
        model.get_output_embeddings().register_forward_hook(lambda *call: shapes.append(tuple(call[2].shape)))
    policy.score(batch)
    policy.reference_score(batch)
    assert shapes == [(1, int(batch.action_mask.sum()), 32)] * 2


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_encoder_reads_each_prompt_once(name: str) -> None:
    policy, read = build(make(name)), []
    policy.model.get_encoder().register_forward_hook(lambda *call: read.append(len(call[2].last_hidden_state)))
    sample(policy, [Prompt("", tuple(ids)) for ids in PROMPTS * 3], SamplingConfig(max_new_tokens=5))
    assert read == [3]


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_the_value_past_a_cut_is_that_of_the_whole_sequence(name: str) -> None:
    policy = build(make(name), value_head=True)
    whole = Trajectories.stack([[1, 2, 3, 4], [5, 6]], [[False, False, True, True], [False, True]], ended=[False] * 2)
    longer = Trajectories.stack([[1, 2, 3, 4, 9], [5, 6, 9]], [[False, False, True, True, True], [False, True, True]])
    with torch.no_grad():
        asked, due = policy.score(whole.extended()).values, policy.score(longer).values
    assert float(asked[0, 4]) == pytest.approx(float(due[0, 4]), abs=1e-6)
    assert float(asked[1, 2]) == pytest.approx(float(due[1, 2]), abs=1e-6)


def test_length_limits_are_those_of_encoder_and_decoder() -> None:
    policy = build(make("bart"), habitual())
    assert (policy.max_prompt_length, policy.max_length) == (63, 63 + 62)
    assert (build(make("t5")).max_prompt_length, build(make("t5")).max_length) == (0, 0)
    full = Trajectories.stack([[1] * 63 + [2] * 62], [[False] * 63 + [True] * 62])
    assert torch.isfinite(policy.score(full).logprobs).all()
    assert torch.isfinite(policy.score(full.extended()).logprobs).all()
    drawn = sample(policy, [Prompt("", (1,) * 63)], SamplingConfig(max_new_tokens=62, eos_token_ids=()))
    assert drawn.num_actions.tolist() == [62]


def test_text_too_long_for_encoder_or_decoder_is_an_error_that_names_it() -> None:
    policy = build(make("bart"), habitual())
    with pytest.raises(
        DataError, match=r"65 tokens \(1 of them closing it\), more than the 64 .* encoder accepts: set "
    ):
        policy.score(Trajectories.stack([[1] * 64 + [2]], [[False] * 64 + [True]]))
    with pytest.raises(DataError, match="has 64 tokens, more than the 62 that the model's decoder accepts"):
        policy.score(Trajectories.stack([[1] + [2] * 64], [[False] + [True] * 64]))
    with pytest.raises(ConfigError, match=r"gen.max_new_tokens = 63: the decoder of Bart.* give at most 62"):
        sample(policy, [Prompt("", (1,))], SamplingConfig(max_new_tokens=63))


def test_training_rows_that_do_not_fit_a_side_are_refused_with_their_index_before_the_first_step(tmp_path: Any) -> None:
    def train(row: list[str], **data: int) -> rlcore.Result:
        return rlcore.train(
            make("bart"), tokenizer=make_tokenizer(), samples=[["a", "b"], row], trainer={"name": "sft"}, data=data,
            run={"steps": 1, "root": str(tmp_path)}, loggers=[],
        )  # fmt: skip

    with pytest.raises(
        DataError, match=r"samples\[1\]: its prompt has 65 .* encoder takes 64; .*max_prompt_tokens to at"
    ):
        train(["a" * 65, "b"])
    with pytest.raises(DataError, match=r"samples\[1\]: has 65 tokens from its first output on, .* decoder takes 63"):
        train(["a", "b" * 64])
    assert "loss/total" in train(["a" * 65, "b" * 62], max_prompt_tokens=64).metrics


@pytest.mark.parametrize("form", ["model", "config", "folder"])
def test_a_model_of_the_other_architecture_is_refused_with_the_right_one(form: str, tmp_path: Any) -> None:
    for model, wrong, right in (
        (make_bart(), build_causal_lm, "seq2seq_lm"),
        (make_gpt2(), build_seq2seq_lm, "causal_lm"),
    ):
        spec: Any = model if form == "model" else model.config
        if form == "folder":
            spec = str(tmp_path / right)
            model.save_pretrained(spec)
            make_tokenizer().save_pretrained(spec)
        config = CausalLMConfig() if wrong is build_causal_lm else Seq2SeqLMConfig()
        with pytest.raises(ModelError, match=f"set model.architecture={right}"):
            wrong(spec, config, tokenizer=make_tokenizer())
        assert fitting_architecture(registries().architectures, spec).name == right


@pytest.mark.parametrize("spec", ["./nowhere", "a/b/c", 3, None])
def test_causal_lm_is_chosen_for_a_model_whose_configuration_cannot_be_read(spec: Any) -> None:
    assert fitting_architecture(registries().architectures, spec).name == "causal_lm"


def test_a_decoder_without_a_start_token_is_refused() -> None:
    model = make_t5()
    model.config.decoder_start_token_id = model.generation_config.decoder_start_token_id = None
    model.config.bos_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(ModelError, match="set decoder_start_token_id"):
        build(model)


def test_a_critic_of_another_architecture_than_the_policy_is_refused(tmp_path: Any) -> None:
    make_gpt2().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"critic = .* is a decoder-only model \(gpt2\)"):
        build(make("t5"), value_head=True, critic=str(tmp_path))


def test_a_model_that_predicts_several_tokens_at_once_is_refused(char_tokenizer: Any) -> None:
    sizes = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_encoder_layers": 1, "num_decoder_layers": 1}
    config = ProphetNetConfig(
        vocab_size=32, hidden_size=16, num_encoder_attention_heads=2, num_decoder_attention_heads=2, **sizes
    )
    with pytest.raises(ModelError, match=r"ProphetNetForConditionalGeneration: .* predicts several tokens at once"):
        build_seq2seq_lm(config, Seq2SeqLMConfig(), tokenizer=char_tokenizer)
