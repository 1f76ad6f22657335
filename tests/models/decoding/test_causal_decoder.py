"""Tests of the causal decoder: it agrees with transformers' `generate` and full forward passes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import transformers as hf
from tiny import make_causal
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicLayer

from rlcore_transformers.models.decoding.cache import PreallocatedLayer, make_cache
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder

PAD = 31
RAGGED = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [1, 2, 3], [13, 14]]
SHAPE = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "initializer_range": 0.3, "eos_token_id": 30, "bos_token_id": 30, "pad_token_id": PAD,
}  # fmt: skip
GPT2_SHAPE = {"n_embd": 16, "n_layer": 2, "n_head": 2}

CONFIGS = {
    "gpt2": hf.GPT2Config(**SHAPE | GPT2_SHAPE, n_positions=64),
    "llama": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "mistral, short window": hf.MistralConfig(**SHAPE, sliding_window=5),
    "mistral, long window": hf.MistralConfig(**SHAPE, sliding_window=500),
    "gemma2, alternating": hf.Gemma2Config(**SHAPE, sliding_window=6, head_dim=8, attn_implementation="eager"),
    "neox": hf.GPTNeoXConfig(**SHAPE),
    "opt": hf.OPTConfig(**SHAPE, ffn_dim=32, max_position_embeddings=64, word_embed_proj_dim=16, dropout=0.0),
    "bloom, no positions": hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2, initializer_range=0.3),
    "lfm2, convolutions": hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
    "mamba, no attention": hf.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4),
}


def make(name: str) -> PreTrainedModel:
    return make_causal(CONFIGS[name])


def greedy(model: PreTrainedModel, prompts: Sequence[Sequence[int]], num_tokens: int) -> list[list[int]]:
    decoder = CausalDecoder(model, prompts, max_new_tokens=num_tokens, pad_id=PAD)
    said, chosen = decoder.start(), []
    for _ in range(num_tokens):
        chosen.append(said.logits.argmax(1))
        said = decoder.step(chosen[-1])
    return torch.stack(chosen, 1).tolist()


def generated(model: PreTrainedModel, prompt: Sequence[int], num_tokens: int) -> list[int]:
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None,
        pad_token_id=PAD,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_decoding_gives_the_tokens_of_generate(name: str) -> None:
    model = make(name)
    expected = [generated(model, prompt, 14) for prompt in RAGGED]
    assert len({token for row in expected for token in row}) > 2
    assert greedy(model, RAGGED, 14) == expected
    assert greedy(model, [RAGGED[0], RAGGED[0]], 14) == [expected[0]] * 2


@pytest.mark.parametrize("name", CONFIGS)
def test_removing_sequences_from_a_batch_does_not_affect_the_others(name: str) -> None:
    model, tokens = make(name), torch.arange(5)
    whole = CausalDecoder(model, RAGGED, max_new_tokens=12, pad_id=PAD)
    fewer = CausalDecoder(model, RAGGED, max_new_tokens=12, pad_id=PAD)
    rows = torch.arange(5)
    whole.start(), fewer.start()
    for kept in ([0, 1, 2, 3, 4], [0, 2, 3], [0, 1, 2], [1, 2], [1]):
        index = torch.tensor(kept)
        fewer.keep(index)
        rows = rows[index]
        for _ in range(2):
            tokens = (tokens * 7 + 3) % 30
            expected, said = whole.step(tokens), fewer.step(tokens[rows])
            torch.testing.assert_close(said.logits, expected.logits[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_values_are_those_of_a_full_forward(name: str) -> None:
    model, head = make(name), nn.Linear(16, 1)

    def value(hidden: Tensor) -> Tensor:
        return head(hidden)[:, 0]

    decoder = CausalDecoder(model, RAGGED, max_new_tokens=12, heads=lambda hidden: (value(hidden), None), pad_id=PAD)
    said, rows = decoder.start(), [list(prompt) for prompt in RAGGED]
    for step in range(12):
        for i, row in enumerate(rows):
            with torch.no_grad():
                full = model(torch.tensor([row]), output_hidden_states=True, use_cache=False)
                expected = value(full.hidden_states[-1][:, -1])
            torch.testing.assert_close(said.values[i : i + 1], expected, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(said.logits[i], full.logits[0, -1], atol=1e-5, rtol=1e-5)
            row.append((7 * step + 3 * i + 1) % 30)
        said = decoder.step(torch.tensor([row[-1] for row in rows]))


def test_decoding_leaves_no_hook_on_the_model_even_if_the_head_raises() -> None:
    model = make("gpt2")

    def broken(hidden: Tensor) -> Tensor:
        raise ArithmeticError

    decoder = CausalDecoder(model, RAGGED, max_new_tokens=4, heads=broken, pad_id=PAD)
    with pytest.raises(ArithmeticError):
        decoder.start()
    assert not model.get_output_embeddings()._forward_pre_hooks
    assert not model.training


def test_a_repeated_prompt_is_computed_once() -> None:
    model, read = make("gpt2"), []
    model.transformer.wte.register_forward_hook(lambda module, args, out: read.append(len(args[0])))
    CausalDecoder(model, [[1, 2]] * 9 + [[3]], max_new_tokens=1, pad_id=PAD).start()
    assert read == [2]


def test_only_layers_with_full_attention_are_preallocated() -> None:
    kinds = {
        name: [type(layer) is PreallocatedLayer for layer in make_cache(CONFIGS[name], 20).layers] for name in CONFIGS
    }
    assert kinds["gpt2"] == kinds["llama"] == kinds["mistral, long window"] == [True, True]
    assert kinds["mistral, short window"] == kinds["mamba, no attention"] == [False, False]
    assert kinds["gemma2, alternating"] == kinds["lfm2, convolutions"] == [False, True]


def test_a_preallocated_layer_holds_what_a_growing_one_holds() -> None:
    generator = torch.Generator().manual_seed(0)
    ours, theirs = PreallocatedLayer(9), DynamicLayer()
    for length in (4, 1, 1, 2):
        states = [torch.randn(5, 2, length, 3, generator=generator) for _ in range(2)]
        for got, expected in zip(ours.update(*states), theirs.update(*states), strict=True):
            assert torch.equal(got, expected)
        assert ours.get_seq_length() == theirs.get_seq_length()
        assert ours.get_mask_sizes(1) == theirs.get_mask_sizes(1)
    buffer = ours.keys.data_ptr()
    rows = torch.tensor([1, 4])
    ours.reorder_cache(rows)
    theirs.reorder_cache(rows)
    states = [torch.randn(2, 2, 1, 3, generator=generator) for _ in range(2)]
    for got, expected in zip(ours.update(*states), theirs.update(*states), strict=True):
        assert torch.equal(got, expected)
    assert ours.keys.data_ptr() == buffer
