"""Tests of freezing and of the reference: frozen weights do not change, and the reference is the initial model."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers as hf
from tiny import GPT, SHAPE, make_causal
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore_transformers.models.forward import predict
from rlcore_transformers.models.freezing import decoder_blocks, freeze_below, frozen_copy, runs_before
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.speed.packing import longest_packed

CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT),
    "gpt2, untied": hf.GPT2Config(**GPT, tie_word_embeddings=False),
    "llama, untied": hf.LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama, tied": hf.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "opt, projected": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0),
    "gpt_neox": hf.GPTNeoXConfig(**SHAPE),
    "qwen2": hf.Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "gemma2": hf.Gemma2Config(**SHAPE, sliding_window=4),
    "gemma3": hf.Gemma3TextConfig(**SHAPE, sliding_window=4),
    "bloom": hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=4, n_head=4),
    "gptj": hf.GPTJConfig(**GPT, rotary_dim=4),
    "mixtral": hf.MixtralConfig(**SHAPE, num_local_experts=4),
    "falcon": hf.FalconConfig(vocab_size=32, hidden_size=16, num_hidden_layers=4, num_attention_heads=4),
}
# Modules that must freeze beside the blocks, by name: those that run before the blocks, and those tied to them.
BEFORE = {
    "gpt2": {"transformer.wte.weight", "transformer.wpe.weight"},
    "gpt2, untied": {"transformer.wte.weight", "transformer.wpe.weight"},
    "llama, untied": {"model.embed_tokens.weight"},
    "llama, tied": {"model.embed_tokens.weight"},
    "opt, projected": {
        "model.decoder.embed_tokens.weight", "model.decoder.embed_positions.weight", "model.decoder.project_in.weight",
    },
    "gpt_neox": {"gpt_neox.embed_in.weight"},
    "qwen2": {"model.embed_tokens.weight"},
    "gemma2": {"model.embed_tokens.weight"},
    "gemma3": {"model.embed_tokens.weight"},
    "bloom": {
        "transformer.word_embeddings.weight", "transformer.word_embeddings_layernorm.weight",
        "transformer.word_embeddings_layernorm.bias",
    },
    "gptj": {"transformer.wte.weight"},
    "mixtral": {"model.embed_tokens.weight"},
    "falcon": {"transformer.word_embeddings.weight"},
}  # fmt: skip
TOKENS = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])


def make(name: str) -> PreTrainedModel:
    return make_causal(CONFIGS[name])


def block_names(model: PreTrainedModel) -> list[set[str]]:
    names = {id(p): name for name, p in model.named_parameters()}
    return [{names[id(p)] for p in block.parameters()} for block in decoder_blocks(model)]


def train(model: PreTrainedModel, steps: int = 3) -> None:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05, weight_decay=0.1)
    for _ in range(steps):
        model(TOKENS, labels=TOKENS, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def logits(model: PreTrainedModel) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(TOKENS, use_cache=False).logits
    return out


@pytest.mark.parametrize("unfrozen", [1, 3, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_freezing_covers_all_layers_below_and_none_above(name: str, unfrozen: int) -> None:
    model = make(name)
    freeze_below(model, unfrozen)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen == BEFORE[name].union(*block_names(model)[: 4 - unfrozen])
    head = model.get_output_embeddings().weight
    assert head.requires_grad == (head is not model.get_input_embeddings().weight)
    before = {name: p.clone() for name, p in model.named_parameters()}
    train(model)
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert not moved & frozen
    assert len(moved) > 0


def test_zero_unfrozen_layers_freeze_the_whole_model() -> None:
    model = make("llama, untied")
    freeze_below(model, 0)
    assert not any(p.requires_grad for p in model.parameters())


def test_unfreezing_more_layers_than_the_model_has_is_an_error() -> None:
    with pytest.raises(ModelError, match="unfrozen_layers = 5: GPT2LMHeadModel has 4 blocks"):
        freeze_below(make("gpt2"), 5)


def test_finding_the_modules_below_a_block_leaves_the_model_unchanged() -> None:
    model = make("gpt2").train()
    expected = logits(model)
    list(runs_before(model, decoder_blocks(model)[2]))
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(logits(model), expected)


@pytest.mark.slow
@pytest.mark.parametrize("unfrozen", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_of_a_full_model_is_an_exact_copy_that_never_changes(name: str, unfrozen: int | None) -> None:
    model = make(name)
    full = copy.deepcopy(model)
    if unfrozen is not None:
        freeze_below(model, unfrozen)
    kept = frozen_copy(model)
    assert torch.equal(logits(kept), logits(full))
    if unfrozen != 0:
        train(model)
        assert not torch.equal(logits(model), logits(full))
    assert torch.equal(logits(kept), logits(full))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_reference_shares_only_frozen_weights(name: str) -> None:
    model = make(name)
    freeze_below(model, 2)
    kept = frozen_copy(model)
    own = dict(model.named_parameters())
    for part, parameter in kept.named_parameters():
        assert (parameter.data_ptr() == own[part].data_ptr()) == (not own[part].requires_grad)
    assert not any(p.requires_grad for p in kept.parameters())
    buffers = {buffer.data_ptr() for buffer in model.buffers() if buffer.numel()}
    assert not buffers & {buffer.data_ptr() for buffer in kept.buffers() if buffer.numel()}
    assert kept.get_input_embeddings().weight is model.get_input_embeddings().weight
    if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
        assert kept.get_output_embeddings().weight is kept.get_input_embeddings().weight


def test_the_reference_needs_memory_for_trained_weights_only() -> None:
    model = make("llama, untied")
    freeze_below(model, 1)
    held = {p.data_ptr() for p in model.parameters()}
    extra = sum(p.numel() for p in frozen_copy(model).parameters() if p.data_ptr() not in held)
    assert extra == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_the_reference_ignores_dropout_and_the_policys_mode() -> None:
    torch.manual_seed(0)
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**GPT | {"resid_pdrop": 0.5})).train()
    kept = frozen_copy(model)
    assert not any(part.training for part in kept.modules())
    assert torch.equal(logits(kept), logits(kept))
    assert model.training


def test_the_reference_of_a_packed_policy_packs() -> None:
    model = make("llama, tied")
    longest = longest_packed(model)
    freeze_below(model, 2)
    kept = frozen_copy(model)
    mask = torch.tensor([[True] * 6, [True] * 3 + [False] * 3])
    chosen = mask & (torch.arange(6) > 0)
    expected, _ = predict(model, CausalLayout(longest), TOKENS, mask, chosen)
    got, _ = predict(kept, CausalLayout(longest), TOKENS, mask, chosen)
    assert torch.equal(got, expected)


def test_a_model_without_a_list_of_blocks_is_refused() -> None:
    model = make("gpt2")
    model.config.n_layer = 7
    with pytest.raises(ModelError, match=r"no list of \[7\] blocks"):
        decoder_blocks(model)
