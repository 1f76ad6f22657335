"""Tests of model loading: every form of a model gives the same policy, and unusable models raise a one-line error."""

from __future__ import annotations

import copy
import json
import math
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, models
from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore.errors import ModelError
from rlcore.ops import disable_dropout
from rlcore.types import Trajectories
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.loading import align, context_length, eos_token_ids, load_model
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig, SpeedConfig
from rlcore_transformers.models.speed.activations import fuse_activations
from rlcore_transformers.models.tokenizers import load_tokenizer

SMALL: dict[str, Any] = {
    "vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64, "bos_token_id": 30,
    "eos_token_id": 30,
}  # fmt: skip
TOKENS = torch.tensor([[3, 4, 5, 6]])


def bare_tokenizer(size: int = 8, **special: str) -> hf.PreTrainedTokenizerFast:
    vocabulary = {f"w{i}": i for i in range(size - 1)} | {"</s>": size - 1}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def test_folder_configuration_and_module_are_the_same_model(
    tmp_path: Path, tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    tiny_gpt2.save_pretrained(tmp_path)
    char_tokenizer.save_pretrained(tmp_path)
    expected = tiny_gpt2(TOKENS).logits
    for spec in (tmp_path, str(tmp_path)):
        policy = build_causal_lm(spec, CausalLMConfig())
        assert torch.allclose(policy.model(TOKENS).logits, expected, atol=1e-5)
        assert policy.tokenizer("abz").input_ids == [0, 1, 25]
        assert not policy.module.model.training
    random = build_causal_lm(tiny_gpt2.config, CausalLMConfig(), tokenizer=tmp_path)
    assert type(random.model) is type(tiny_gpt2)
    assert build_causal_lm(tiny_gpt2, CausalLMConfig(), tokenizer=str(tmp_path)).model is tiny_gpt2


@torch.no_grad()
def misalign(model: PreTrainedModel) -> PreTrainedModel:
    """Move weights to where those of a mapped file often lie: 40 bytes above a multiple of 64."""
    for each in model.parameters():
        place = torch.empty(each.numel() + 10, dtype=each.dtype)[10:].view(each.shape)
        each.data = place.copy_(each)
        assert each.data_ptr() % 64 == 40
    return model


@torch.no_grad()
@pytest.mark.parametrize("make", [make_llama, make_t5])
def test_the_alignment_of_weights_changes_no_bit(make: Any) -> None:
    """One row is multiplied by other kernels than several, which round differently at other addresses."""
    build = build_causal_lm if make is make_llama else build_seq2seq_lm
    config = CausalLMConfig() if make is make_llama else Seq2SeqLMConfig()
    batch = Trajectories.stack([[1, 2, 3]], [[False, False, True]])
    found = []
    for model in (make(), misalign(make())):
        policy = build(model, config, tokenizer=make_tokenizer(), value_head=True, reference=True)
        weights = [*policy.module.parameters(), *policy.reference.parameters()]
        assert not any(each.data_ptr() % 64 for each in weights)
        first = policy.decoder([[1, 2, 3]], max_new_tokens=1).start().logits
        found.append((first, policy.score(batch).logprobs, policy.reference_score(batch).logprobs))
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_a_folder_is_read_into_memory_of_its_own_and_tied_weights_stay_tied(tmp_path: Path) -> None:
    make_gpt2().save_pretrained(tmp_path)
    model = load_model(tmp_path, CausalLMConfig())
    assert not any(each.data_ptr() % 64 for each in model.parameters())
    assert model.lm_head.weight is model.transformer.wte.weight
    shared = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
    misalign(shared)  # type: ignore[arg-type]
    shared[1].weight.data = shared[0].weight.data
    align(shared)
    assert shared[0].weight.data_ptr() == shared[1].weight.data_ptr() != shared[0].bias.data_ptr()


def test_random_weights_follow_the_seed(char_tokenizer: Any) -> None:
    def first() -> torch.Tensor:
        torch.manual_seed(4)
        weight: torch.Tensor = load_model(hf.GPT2Config(**SMALL), CausalLMConfig()).transformer.wte.weight
        return weight

    assert torch.equal(first(), first())


def test_the_callers_configuration_is_not_changed(char_tokenizer: Any) -> None:
    given = hf.GPT2Config(**SMALL, architectures=["GPT2Model", "GPT2ForSequenceClassification"])
    before = copy.deepcopy(given).to_dict()
    policy = build_causal_lm(given, CausalLMConfig(dtype="bfloat16"), tokenizer=char_tokenizer)
    assert given.to_dict() == before
    assert given._attn_implementation != policy.model.config._attn_implementation
    assert type(policy.model).__name__ == "GPT2LMHeadModel"


def test_families_without_sdpa_are_built_with_what_they_have(char_tokenizer: Any) -> None:
    policy = build_causal_lm(hf.GPTJConfig(**SMALL, rotary_dim=4), CausalLMConfig(), tokenizer=char_tokenizer)
    assert policy.model.config._attn_implementation == "eager"
    with pytest.raises(ModelError, match=r"GPTJConfig: cannot be built: .*scaled_dot_product"):
        load_model(hf.GPTJConfig(**SMALL, rotary_dim=4), CausalLMConfig(attention="sdpa"))


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "~/no-such-folder-here", "a/b/c"])
def test_a_missing_folder_is_named(name: str) -> None:
    with pytest.raises(ModelError, match="there is no such folder") as caught:
        load_model(name, CausalLMConfig())
    assert name in str(caught.value)


def test_an_unavailable_hub_id_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match="model = 'no-one/no-such-model': cannot be loaded: ") as caught:
        load_model("no-one/no-such-model", CausalLMConfig())
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1  # no other output
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        ([1, 2], r"cannot be loaded: pytorch_model\.bin is not a mapping from names to tensors .*\(TypeError"),
        (3, r"pytorch_model\.bin is not a mapping from names to tensors"),
        (Path("x"), r"pytorch_model\.bin is not a mapping .*these may run code\. Save the model with save_pretrained$"),
        ({"transformer.wte.weight": [1.0]}, r"pytorch_model\.bin is not a mapping from names to tensors"),
        (b"", r"pytorch_model\.bin is not a mapping"),
        (b"hello", r"pytorch_model\.bin is not a mapping"),
        (b"\x80\x04}\x94.", r"pytorch_model\.bin is not a mapping"),
        ({"other": torch.zeros(2)}, r"its files contain none of the weights of a GPT2LMHeadModel, such as transformer"),
    ],
)
def test_a_bin_file_of_another_kind_is_named_in_words(tmp_path: Path, contents: Any, message: str) -> None:
    make_gpt2().config.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    if isinstance(contents, bytes):
        (tmp_path / "pytorch_model.bin").write_bytes(contents)
    else:
        torch.save(contents, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=message) as caught:
        load_model(tmp_path, CausalLMConfig())
    assert "\n" not in str(caught.value)


def test_weights_that_no_file_has_are_named_in_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_gpt2()
    make_tokenizer().save_pretrained(tmp_path)
    model.config.save_pretrained(tmp_path)
    weights = {name: value.clone() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    torch.save(weights, tmp_path / "pytorch_model.bin")
    load_model(tmp_path, CausalLMConfig())
    assert "begin random" not in capsys.readouterr().err
    del weights["transformer.h.0.mlp.c_fc.bias"]
    torch.save(weights, tmp_path / "pytorch_model.bin")
    load_model(tmp_path, CausalLMConfig())
    shown = capsys.readouterr().err
    assert "weights are in no file of the model and begin random" in shown
    assert "transformer.h.0.mlp.c_fc.bias" in shown


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be loaded: .*config\.json"):
        load_model(tmp_path, CausalLMConfig())
    (tmp_path / "config.json").write_text(json.dumps(hf.GPT2Config(**SMALL).to_dict()))
    with pytest.raises(ModelError, match=r"cannot be loaded: .*safetensors"):
        load_model(tmp_path, CausalLMConfig())
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"cannot be loaded: .*JSON"):
        load_model(tmp_path, CausalLMConfig())
    (tmp_path / "config.json").write_text('{"model_type": "marvellous"}')
    with pytest.raises(ModelError, match=r"cannot be loaded: .*marvellous"):
        load_model(tmp_path, CausalLMConfig())


def test_damaged_weights_are_an_error(tmp_path: Path, tiny_gpt2: PreTrainedModel) -> None:
    tiny_gpt2.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing of use")
    with pytest.raises(ModelError, match="cannot be loaded"):
        load_model(tmp_path, CausalLMConfig())


@pytest.mark.parametrize("spec", [3, None, ["gpt2"], nn.Linear(2, 2)])
def test_loading_an_object_that_is_no_model_is_an_error(spec: Any) -> None:
    with pytest.raises(
        ModelError, match="give a hub id, a folder, a GGUF file, a PretrainedConfig or a PreTrainedModel"
    ):
        load_model(spec, CausalLMConfig())


def test_loading_an_encoder_decoder_as_a_causal_model_is_refused_with_advice(tmp_path: Path) -> None:
    config = hf.T5Config(vocab_size=32, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    model = hf.T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    for spec in (config, model, tmp_path):
        with pytest.raises(ModelError, match=r"decoder-only models such as gpt2|T5"):
            load_model(spec, CausalLMConfig())


def test_a_model_without_a_head_is_an_error() -> None:
    with pytest.raises(ModelError, match="GPT2Model has no language-model head"):
        load_model(hf.GPT2Model(hf.GPT2Config(**SMALL)), CausalLMConfig())


def test_a_model_that_sees_the_future_is_an_error(char_tokenizer: Any) -> None:
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    with pytest.raises(ModelError, match="BertLMHeadModel lets tokens attend to later ones"):
        build_causal_lm(hf.BertConfig(vocab_size=32, **shape), CausalLMConfig(), tokenizer=char_tokenizer)
    decoder = hf.BertConfig(vocab_size=32, is_decoder=True, **shape)
    assert build_causal_lm(decoder, CausalLMConfig(), tokenizer=char_tokenizer).model.config.is_decoder


@pytest.mark.parametrize("family", ["gpt2", "llama", "gpt_neox", "gemma"])  # transformers generates tokenizers for some
def test_a_model_folder_without_a_tokenizer_is_an_error_that_names_what_to_pass(tmp_path: Path, family: str) -> None:
    hf.AutoConfig.for_model(family, vocab_size=32).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"holds no tokenizer .*pass tokenizer= .*model\.tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["no-one/nothing", "/no/such/folder"])
def test_a_missing_tokenizer_is_named(given: str) -> None:
    with pytest.raises(ModelError, match=f"'{given}': there is no such folder") as caught:
        load_tokenizer("gpt2", given)
    assert "\n" not in str(caught.value)


def test_a_model_in_memory_brings_no_tokenizer(tiny_gpt2: PreTrainedModel) -> None:
    for spec in (tiny_gpt2, tiny_gpt2.config):
        with pytest.raises(ModelError, match=rf"a {type(spec).__name__} comes without a tokenizer; pass tokenizer="):
            load_tokenizer(spec)


def test_a_missing_padding_token_is_eos_and_the_callers_tokenizer_is_not_touched() -> None:
    given = bare_tokenizer(eos_token="</s>")
    assert load_tokenizer("x", given).pad_token_id == 7
    assert given.pad_token is None


def test_a_tokenizer_with_a_padding_token_is_the_callers_own() -> None:
    given = bare_tokenizer(eos_token="</s>", pad_token="w1")
    assert load_tokenizer("x", given) is given


def test_neither_padding_nor_eos_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"neither a padding nor an EOS token: set tokenizer\.eos_token"):
        load_tokenizer("x", bare_tokenizer())


def test_a_tokenizer_larger_than_the_vocabulary_is_an_error(tiny_gpt2: PreTrainedModel) -> None:
    with pytest.raises(ModelError, match=r"the tokenizer has 40 tokens, the model 32: call model.resize"):
        build_causal_lm(tiny_gpt2, CausalLMConfig(), tokenizer=bare_tokenizer(40, eos_token="</s>"))
    tiny_gpt2.resize_token_embeddings(40)
    policy = build_causal_lm(tiny_gpt2, CausalLMConfig(), tokenizer=bare_tokenizer(40, eos_token="</s>"))
    assert policy.eos_token_ids == (39, 30)


@pytest.mark.parametrize(
    ("generation", "expected"),
    [(None, (30,)), (30, (30,)), ([29, 30, 28], (30, 29, 28)), (5000, (30,)), ([-1, 3], (30, 3))],
)
def test_several_eos_ids_are_listed_once(
    generation: Any, expected: tuple[int, ...], tiny_gpt2: PreTrainedModel, char_tokenizer: Any
) -> None:
    tiny_gpt2.generation_config.eos_token_id = generation
    assert eos_token_ids(tiny_gpt2, char_tokenizer) == expected


def test_the_context_length_is_that_of_the_configuration(tiny_gpt2: PreTrainedModel) -> None:
    assert context_length(tiny_gpt2) == 64
    assert context_length(hf.BloomForCausalLM(hf.BloomConfig(vocab_size=8, hidden_size=8, n_layer=1, n_head=2))) == 0


@pytest.mark.parametrize("options", [{"temperature": 0.7}, {"top_k": 7}, {"top_p": 0.9, "top_k": 3}])
def test_generation_options_that_transformers_refuses_to_save_are_corrected(
    tmp_path: Path, options: dict[str, Any], tiny_gpt2: PreTrainedModel
) -> None:
    for name, value in options.items():
        setattr(tiny_gpt2.generation_config, name, value)
    with pytest.raises(ValueError, match="do_sample"):
        tiny_gpt2.save_pretrained(tmp_path)
    load_model(tiny_gpt2, CausalLMConfig()).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved.items() >= ({"do_sample": True} | options).items()


def test_generation_options_that_make_no_sense_are_an_error_before_anything_is_trained(
    tiny_gpt2: PreTrainedModel,
) -> None:
    tiny_gpt2.generation_config.max_new_tokens = -1
    with pytest.raises(ModelError, match=r"generation_config cannot be saved: .*max_new_tokens"):
        load_model(tiny_gpt2, CausalLMConfig())


def test_valid_generation_options_are_not_changed(tiny_gpt2: PreTrainedModel) -> None:
    before = tiny_gpt2.generation_config.to_dict()
    assert load_model(tiny_gpt2, CausalLMConfig()).generation_config.to_dict() == before


@pytest.mark.parametrize("slow", [NewGELUActivation, FastGELUActivation])
def test_fused_activations_are_the_same_function(slow: type[nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Sequential(slow()))
    x = torch.linspace(-8, 8, 4001)
    fuse_activations(model)
    fused = model[1][0]
    assert not isinstance(fused, slow)
    by_hand = 0.5 * x.double() * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x.double() + 0.044715 * x.double() ** 3)))
    assert float((fused(x) - slow()(x)).abs().max()) < 5e-7 * 8
    assert float((fused(x).double() - by_hand).abs().max()) < 1e-6


def test_fused_activations_change_no_logits_and_can_be_disabled(tiny_gpt2: PreTrainedModel) -> None:
    plain = load_model(copy.deepcopy(tiny_gpt2), CausalLMConfig(speed=SpeedConfig(fused_activations=False)))
    fused = load_model(tiny_gpt2, CausalLMConfig())
    assert isinstance(plain.transformer.h[0].mlp.act, NewGELUActivation)
    assert isinstance(fused.transformer.h[1].mlp.act, nn.GELU)
    assert torch.allclose(plain(TOKENS).logits, fused(TOKENS).logits, atol=5e-6)


@pytest.mark.parametrize(
    "config",
    [
        hf.GPT2Config(**SMALL, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5),
        hf.LlamaConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            attention_dropout=0.5,
        ),
        hf.OPTConfig(
            vocab_size=32, hidden_size=16, ffn_dim=32, num_hidden_layers=2, num_attention_heads=2, dropout=0.5,
            attention_dropout=0.5, layerdrop=0.5, word_embed_proj_dim=16,
        ),
        hf.GPTNeoXConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            attention_dropout=0.5, hidden_dropout=0.5,
        ),
        hf.MixtralConfig(
            vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, num_local_experts=2, router_jitter_noise=0.5,
        ),
    ],
)  # fmt: skip
def test_without_dropout_training_mode_has_the_outputs_of_evaluation_mode(config: hf.PretrainedConfig) -> None:
    torch.manual_seed(0)
    model = load_model(config, CausalLMConfig())
    expected = model(TOKENS).logits
    model.train()
    assert not torch.equal(model(TOKENS).logits, expected)
    disable_dropout(model)
    assert torch.equal(model(TOKENS).logits, expected)


def test_the_attention_option_applies_to_a_model_in_memory(tiny_gpt2: PreTrainedModel, char_tokenizer: Any) -> None:
    policy = build_causal_lm(tiny_gpt2, CausalLMConfig(attention="eager"), tokenizer=char_tokenizer)
    assert policy.model.config._attn_implementation == "eager"
    with pytest.raises(ModelError, match=r"model\.attention = 'nonsense': GPT2LMHeadModel cannot be switched to it"):
        build_causal_lm(tiny_gpt2, CausalLMConfig(attention="nonsense"), tokenizer=char_tokenizer)
