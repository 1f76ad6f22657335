"""Tests of models in GGUF files: they equal the models that they were made of, train and resume, or are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rlcore
from rlcore.cli import main
from rlcore.errors import ModelError
from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import build_sequence_scorer
from rlcore_transformers.models import gguf as gguf_module
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

END = "<|im_end|>"
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
PROMPTS = ["ab", "ba", "aab", "bb"]
Q8 = gguf.GGMLQuantizationType.Q8_0


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE without merges but one, which ends texts with END."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, "ab", "<|im_start|>", END])}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = {"bos_token": "<|im_start|>", "eos_token": END, "pad_token": END}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=TEMPLATE, **special)


def make_model() -> LlamaForCausalLM:
    """Return a Llama with grouped queries, whose rotary frequency and epsilon are not the defaults."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 500.0, "rms_norm_eps": 1e-4}
    config = LlamaConfig(
        vocab_size=259, **shape, **heads, tie_word_embeddings=True, bos_token_id=257, eos_token_id=258, pad_token_id=258
    )
    return LlamaForCausalLM(config).eval()


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Return rows of queries or keys in the order of llama.cpp: the two halves of a head alternate."""
    halves = weight.reshape(heads, 2, -1, weight.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


def write(
    path: Path, *, architecture: str = "llama", quantised: bool = False, change: Callable[[Any], None] | None = None
) -> Path:
    """Write a model as llama.cpp's conversion does; `change` may write further fields."""
    model, tokenizer, out = make_model(), byte_tokenizer(), gguf.GGUFWriter(path, architecture)
    config = model.config
    out.add_context_length(64)
    out.add_block_count(2)
    out.add_embedding_length(64)
    out.add_feed_forward_length(96)
    out.add_head_count(4)
    out.add_head_count_kv(2)
    out.add_rope_dimension_count(16)
    out.add_rope_freq_base(500.0)
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_vocab_size(259)
    tokens = [token for token, _ in sorted(tokenizer.get_vocab().items(), key=lambda each: each[1])]
    out.add_tokenizer_model("gpt2")
    out.add_token_list(tokens)
    out.add_token_types([1] * 257 + [3] * 2)
    out.add_token_merges(["a b"])
    out.add_bos_token_id(257)
    out.add_eos_token_id(258)
    out.add_pad_token_id(258)
    out.add_chat_template(TEMPLATE)
    if change is not None:
        change(out)
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        short = name.removeprefix("model.").removesuffix(".weight")
        if short.startswith("layers."):
            _, layer, part = short.split(".", 2)
            heads = {"attn_q": 4, "attn_k": 2}.get(NAMES[part])
            values = values if heads is None else permuted(values, heads)
            short = f"blk.{layer}.{NAMES[part]}"
        elif short == "lm_head":  # tied
            continue
        else:
            short = {"embed_tokens": "token_embd", "norm": "output_norm"}[short]
        if quantised and values.ndim == 2:
            out.add_tensor(f"{short}.weight", gguf.quants.quantize(values, Q8), raw_dtype=Q8)
        else:
            out.add_tensor(f"{short}.weight", values)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds one GGUF file, `tiny.gguf`."""
    made = tmp_path_factory.mktemp("gguf")
    write(made / "tiny.gguf")
    return made


def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(torch.tensor([[257, 3, 4, 250, 256]])).logits.detach()
    return found


def letters(outputs: list[str]) -> list[float]:
    """Return a score that differs between almost all outputs."""
    return [sum(map(ord, each)) / 1000 for each in outputs]


def run(root: Path, name: str, model: Any, steps: int, **options: Any) -> Any:
    trainer = {"name": "grpo", "rollouts": 4, "num_generations": 2, "optimizer": {"lr": 1e-3}}
    return rlcore.train(
        model, trainer=trainer, prompts=PROMPTS, reward_fn=letters, gen={"max_new_tokens": 4}, loggers=[],
        run={"steps": steps, "root": str(root), "name": name, **options}, eval={"at_end": False},
    )  # fmt: skip


def test_a_gguf_file_is_the_model_and_tokenizer_that_it_was_made_of(folder: Path) -> None:
    model, tokenizer = make_model(), byte_tokenizer()
    for spec in (folder / "tiny.gguf", str(folder)):
        policy = build_causal_lm(spec, CausalLMConfig())
        assert torch.allclose(logits(policy.model), logits(model), atol=1e-6)
        for text in ("abba", f"<|im_start|>a{END}", "é ?"):
            assert policy.tokenizer(text).input_ids == tokenizer(text).input_ids
        assert policy.tokenizer.eos_token == policy.tokenizer.pad_token == END
        assert policy.tokenizer.get_vocab() == tokenizer.get_vocab()  # transformers alone adds GPT-2's EOS
        assert policy.tokenizer.chat_template == TEMPLATE
        assert policy.model.generation_config.eos_token_id == 258


def test_a_gguf_file_gets_the_head_of_a_reward_model(folder: Path) -> None:
    scorer = build_sequence_scorer(str(folder / "tiny.gguf"), SequenceScorerConfig())
    assert scorer.model.config.num_labels == 1
    ids = torch.tensor([[257, 3, 4, 250, 256]])
    with torch.no_grad():
        hidden = make_model().model(ids).last_hidden_state
        assert torch.allclose(scorer.model.model(ids).last_hidden_state, hidden, atol=1e-6)
        assert scorer.model(ids).logits.shape == (1, 1)


def test_quantised_blocks_are_trained_as_the_numbers_that_they_stand_for(tmp_path: Path) -> None:
    policy = build_causal_lm(write(tmp_path / "q8.gguf", quantised=True), CausalLMConfig())
    weight = make_model().model.layers[1].mlp.up_proj.weight.detach().numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(weight, Q8), Q8)
    found = policy.model.model.layers[1].mlp.up_proj.weight
    assert np.array_equal(found.detach().numpy(), expected)
    assert not np.array_equal(expected, weight)
    assert found.requires_grad


def test_what_was_trained_is_a_plain_model_that_resumes_exactly(folder: Path, tmp_path: Path) -> None:
    spec = str(folder / "tiny.gguf")
    whole = run(tmp_path, "whole", spec, 4)
    run(tmp_path, "parts", spec, 2)
    parts = run(tmp_path, "parts", spec, 4, resume="auto")
    saved = tmp_path / "whole" / "model"
    assert {each.suffix for each in saved.iterdir()}.isdisjoint({".gguf"})
    assert "quantization_config" not in json.loads((saved / "config.json").read_text())
    plain = AutoModelForCausalLM.from_pretrained(saved)
    assert torch.equal(logits(plain), logits(whole.policy.model))
    assert torch.equal(logits(plain), logits(parts.policy.model))
    assert not torch.equal(logits(plain), logits(make_model()))
    tokenizer = AutoTokenizer.from_pretrained(saved)
    assert (tokenizer.eos_token, tokenizer.chat_template) == (END, TEMPLATE)
    assert tokenizer("abba").input_ids == byte_tokenizer()("abba").input_ids


def test_a_resumed_run_notices_another_file(tmp_path: Path) -> None:
    run(tmp_path, "one", str(write(tmp_path / "tiny.gguf")), 1)
    write(tmp_path / "tiny.gguf", quantised=True)
    with pytest.raises(rlcore.errors.RLCoreError, match=r"model\.path"):
        run(tmp_path, "one", str(tmp_path / "tiny.gguf"), 2, resume="auto")


def test_an_adapter_on_a_gguf_file_is_merged_into_a_plain_model(folder: Path, tmp_path: Path) -> None:
    spec = str(folder / "tiny.gguf")
    result = run(tmp_path, "lora", {"path": spec, "peft": {"type": "lora", "r": 2, "target_modules": ["q_proj"]}}, 1)
    saved = tmp_path / "lora" / "model"
    merged = AutoModelForCausalLM.from_pretrained(saved)
    assert torch.allclose(logits(merged), logits(result.policy.model), atol=1e-6)
    again = build_causal_lm(str(saved / "adapter"), CausalLMConfig(), tokenizer=str(saved))
    assert torch.allclose(logits(again.model), logits(merged), atol=1e-6)


def test_a_plan_reads_only_the_configuration(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.yaml").write_text(
        f"model: {{path: {folder / 'tiny.gguf'}}}\ntrainer: {{name: sft, batch_size: 2}}\n"
        "data: {samples: [aab, abb]}\nrun: {steps: 1}\n"
    )
    assert main(["plan", str(tmp_path / "run.yaml")]) == 0
    assert "parameters" in capsys.readouterr().out


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:200])


def not_gguf(file: Path) -> None:
    file.write_bytes(b"weights of another kind")


@pytest.mark.parametrize("spoil", [damage, not_gguf])
def test_a_damaged_file_is_refused(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    spoil(write(tmp_path / "tiny.gguf"))
    with pytest.raises(ModelError, match=r"tiny\.gguf is damaged, or no GGUF file") as raised:
        build_causal_lm(str(tmp_path / "tiny.gguf"), CausalLMConfig())
    assert "\n" not in str(raised.value)


def test_architectures_that_transformers_cannot_read_are_named(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", architecture="rwkv7")
    with pytest.raises(ModelError, match=r"no GGUF files of the architecture 'rwkv7'.*folder or hub id of the model"):
        build_causal_lm(str(tmp_path), CausalLMConfig())


def test_one_of_several_parts_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf", change=lambda out: out.add_uint16("split.count", 3))
    with pytest.raises(ModelError, match=r"one of 3 parts.*llama-gguf-split --merge"):
        build_causal_lm(str(tmp_path), CausalLMConfig())


def test_a_folder_of_several_files_and_an_absent_file_are_refused(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        write(tmp_path / name)
    with pytest.raises(ModelError, match=r"2 GGUF files: name one of them, such as '.*a\.gguf'"):
        build_causal_lm(str(tmp_path), CausalLMConfig())
    with pytest.raises(ModelError, match=r"there is no such file"):
        build_causal_lm(str(tmp_path / "c.gguf"), CausalLMConfig())


def test_a_missing_library_names_its_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_module, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"pip install 'rlcore-transformers\[gguf\]'"):
        build_causal_lm(str(folder), CausalLMConfig())


def test_weights_of_a_gguf_file_are_not_quantised_again(folder: Path) -> None:
    config = CausalLMConfig(quantization="4bit", peft={"type": "lora"})
    with pytest.raises(ModelError, match=r"dequantised when it is loaded"):
        build_causal_lm(str(folder / "tiny.gguf"), config)
