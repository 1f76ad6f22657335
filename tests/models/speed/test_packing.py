"""Tests of packing: running real tokens only gives the same outputs and gradients as running padded batches."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import tiny
import torch
import transformers as hf
from tiny import make_causal
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel

from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.forward import predict
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.model_options import CausalLMConfig, SpeedConfig
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.packing import PACKED, Packing, longest_packed, pack, packed_attention

SIZES: dict[str, Any] = {"vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE = tiny.SHAPE | SIZES | {"num_hidden_layers": 2, "max_position_embeddings": 96}
GPT = tiny.GPT | SIZES | {"n_layer": 2, "n_positions": 96}
NEO: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 16, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 96,
    "window_size": 8, "attention_types": [[["global", "local"], 1]], "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
FALCON = {name: SHAPE[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")}

PACKS = {
    "gpt2": hf.GPT2Config(**GPT),
    "llama": hf.LlamaConfig(**SHAPE),
    "qwen2": hf.Qwen2Config(**SHAPE),
    "qwen3": hf.Qwen3Config(**SHAPE),
    "gpt_neox": hf.GPTNeoXConfig(**SHAPE),
    "mistral": hf.MistralConfig(**SHAPE, sliding_window=None),
    "mistral, long window": hf.MistralConfig(**SHAPE, sliding_window=40),
    "phi": hf.PhiConfig(**SHAPE),
    "phi3": hf.Phi3Config(**SHAPE),
    "gemma": hf.GemmaConfig(**SHAPE),
    "cohere": hf.CohereConfig(**SHAPE),
    "olmo2": hf.Olmo2Config(**SHAPE),
    "starcoder2": hf.Starcoder2Config(**SHAPE, sliding_window=None),
    "granite": hf.GraniteConfig(**SHAPE, logits_scaling=4.0),
    "smollm3": hf.SmolLM3Config(**SHAPE),
    "opt": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=8, dropout=0.0),
    "gpt_bigcode": hf.GPTBigCodeConfig(**GPT),
    "mixtral": hf.MixtralConfig(**SHAPE, sliding_window=None, num_local_experts=4),
    "qwen2_moe": hf.Qwen2MoeConfig(
        **SHAPE, num_experts=4, moe_intermediate_size=8, shared_expert_intermediate_size=8
    ),
}  # fmt: skip
DOES_NOT_PACK = {
    "stablelm, drops keywords": hf.StableLmConfig(**SHAPE),
    "gemma2, soft cap": hf.Gemma2Config(**SHAPE, sliding_window=8),
    "gpt_oss, sinks": hf.GptOssConfig(**SHAPE, num_local_experts=4, sliding_window=8),
    "gptj, own attention": hf.GPTJConfig(**GPT, rotary_dim=4),
    "gpt_neo, own attention": hf.GPTNeoConfig(**NEO),
    "bloom, own attention": hf.BloomConfig(vocab_size=64, hidden_size=16, n_layer=2, n_head=4),
    "falcon, own attention": hf.FalconConfig(**FALCON),
    "lfm2, convolutions": hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
    "mamba, no attention": hf.MambaConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, state_size=4),
}
LENGTHS = (2, 7, 31, 12)
COLUMNS = 37  # not the longest row: with equal widths, both sides would run the same kernels


def batch(side: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, the mask of real ones, and scattered chosen tokens; padding contains a real token's id."""
    random = torch.Generator().manual_seed(1)
    tokens = torch.full((len(LENGTHS), COLUMNS), 5)
    mask = torch.zeros(tokens.shape, dtype=torch.bool)
    for i, length in enumerate(LENGTHS):
        start = {"left": COLUMNS - length, "right": 0, "both": min(i, COLUMNS - length)}[side]
        mask[i, start : start + length] = True
    tokens[mask] = torch.randint(3, 64, (sum(LENGTHS),), generator=random)
    later = mask & (mask.cumsum(1) > 1)
    return tokens, mask, later & (torch.rand(tokens.shape, generator=random) < 0.7)


def by_row(model: PreTrainedModel, tokens: Tensor, mask: Tensor, action_mask: Tensor) -> Tensor:
    """Run each sequence alone and unpadded, and shift by hand."""
    said = []
    for ids, real, chosen in zip(tokens, mask, action_mask, strict=True):
        logits = model(ids[real][None], use_cache=False).logits[0]
        said.append(logits[:-1][chosen[real][1:]])
    return torch.cat(said)


def gradients(model: PreTrainedModel, logits: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    weights = torch.linspace(-1, 1, logits.numel()).reshape(logits.shape)
    (logits.log_softmax(-1) * weights).sum().div(len(logits)).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    assert got.keys() == expected.keys()
    scale = max(float(gradient.abs().max()) for gradient in expected.values())
    assert max(float((got[name] - expected[name]).abs().max()) for name in got) < tolerance * scale


@pytest.mark.parametrize("name", PACKS)
def test_packed_scores_equal_those_of_each_sequence_alone(name: str) -> None:
    model = make_causal(PACKS[name])
    sides = [batch(side) for side in ("left", "right", "both")]
    expected = [by_row(model, *side) for side in sides]
    wanted = gradients(model, expected[0])
    longest = longest_packed(model)
    assert longest >= 40
    assert model.config._attn_implementation == PACKED
    for side, logits in zip(sides, expected, strict=True):
        packed, _ = predict(model, CausalLayout(longest), *side)
        padded, _ = predict(model, CausalLayout(), *side)
        assert torch.allclose(packed, logits, rtol=1e-5, atol=1e-5)
        assert torch.allclose(padded, logits, rtol=1e-5, atol=1e-5)
    assert_same(gradients(model, predict(model, CausalLayout(longest), *sides[0])[0]), wanted, 1e-5)


@pytest.mark.parametrize("name", DOES_NOT_PACK)
def test_a_model_that_cannot_pack_is_unchanged_and_correct_with_padding(name: str) -> None:
    model = make_causal(DOES_NOT_PACK[name])
    before = model.config._attn_implementation
    with pytest.raises(TechniqueRefused) as refused:
        longest_packed(model)
    assert ("'eager', not 'sdpa'" in str(refused.value)) == (before == "eager")
    assert model.config._attn_implementation == before
    sides = ("left", "right", "both") if "mamba" not in name else ("right",)
    for side in sides:
        given = batch(side)
        logits, _ = predict(model, CausalLayout(), *given)
        assert torch.allclose(logits, by_row(model, *given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_sequences_longer_than_the_window_are_padded(name: str) -> None:
    config = hf.MistralConfig if name == "mistral" else hf.Gemma3TextConfig
    model = make_causal(config(**SHAPE, sliding_window=12))
    given = batch("left")
    expected = by_row(model, *given)
    longest = longest_packed(model)
    assert longest == 12
    logits, _ = predict(model, CausalLayout(longest), *given)
    assert torch.allclose(logits, expected, rtol=1e-5, atol=1e-5)
    wrong = pack(given[0], given[1]).inputs
    with pytest.raises(Exception, match="window of 12 tokens is shorter"):
        model(**wrong)
    tokens, mask, action_mask = (array[[0, 1, 3]] for array in given)  # of at most 12 tokens: these fit
    logits, _ = predict(model, CausalLayout(longest), tokens, mask, action_mask)
    assert torch.allclose(logits, by_row(model, tokens, mask, action_mask), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("length", "fits"), [(11, True), (12, True), (13, False)])
def test_a_sequence_of_as_many_tokens_as_the_window_fits_and_one_more_does_not(length: int, fits: bool) -> None:
    model = make_causal(hf.MistralConfig(**SHAPE, sliding_window=12))
    tokens = torch.randint(3, 64, (2, length), generator=torch.Generator().manual_seed(0))
    expected = model(tokens).logits.flatten(0, 1)
    assert longest_packed(model) == 12
    packed = pack(tokens, torch.ones_like(tokens, dtype=torch.bool))
    with contextlib.nullcontext() if fits else pytest.raises(TechniqueRefused, match="window of 12 tokens is shorter"):
        assert torch.allclose(model(**packed.inputs).logits[0], expected, rtol=1e-5, atol=1e-5)


def test_only_tokens_that_predict_something_reach_the_linear_layers() -> None:
    model = make_causal(PACKS["llama"])
    longest = longest_packed(model)
    widths = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda _, args: widths.append(tuple(args[0].shape[:2])))
    tokens = torch.arange(24).reshape(3, 8)
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]]).bool()
    chosen = torch.tensor([[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0, 0, 0]]).bool()
    predict(model, CausalLayout(longest), tokens, mask, chosen)
    predict(model, CausalLayout(), tokens, mask, chosen)
    assert widths == [(1, 4 + 3 + 1), (3, 8)]  # each row up to the token before its last chosen one


def test_rows_without_padding_are_not_scattered() -> None:
    model = make_causal(PACKS["gpt2"])
    tokens = torch.randint(3, 64, (3, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 9, dtype=torch.bool)
    chosen = mask & (torch.arange(9) > 3)
    expected = by_row(model, tokens, mask, chosen)
    logits, _ = predict(model, CausalLayout(longest_packed(model)), tokens, mask, chosen)
    assert torch.allclose(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_batch_without_real_tokens_gives_empty_logits_and_zero_gradients(name: str) -> None:
    model = make_causal(PACKS[name])
    nothing = torch.zeros(3, 5, dtype=torch.bool)
    logits, run = predict(model, CausalLayout(longest_packed(model)), nothing.long(), nothing, nothing)
    assert (logits.shape, run.chosen.shape) == ((0, 64), (0,))
    logits.sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_a_model_with_eager_attention_is_not_packed() -> None:
    config = CausalLMConfig(attention="eager")
    tokenizer = _tokenizer()
    policy = build_causal_lm(PACKS["llama"], config, tokenizer=tokenizer)
    assert policy.module.layout.longest == 0
    assert policy.model.config._attn_implementation == "eager"


def test_packing_can_be_switched_off() -> None:
    policy = build_causal_lm(PACKS["llama"], CausalLMConfig(speed=SpeedConfig(packing=False)), tokenizer=_tokenizer())
    assert (policy.module.layout.longest, policy.model.config._attn_implementation) == (0, "sdpa")


def test_preparing_a_model_for_packing_twice_has_the_same_result() -> None:
    model = make_causal(PACKS["llama"])
    assert longest_packed(model) == longest_packed(model) > 0


def test_the_model_stays_in_its_mode_and_draws_no_random_numbers() -> None:
    model = make_causal(hf.GPT2Config(**GPT | {"resid_pdrop": 0.5})).train()
    state = torch.get_rng_state()
    assert longest_packed(model)
    assert all(part.training for part in model.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_packing_works_in_bfloat16() -> None:
    model = make_causal(PACKS["llama"])
    given = batch("left")
    expected = by_row(model, *given).detach()
    model.to(torch.bfloat16)
    longest = longest_packed(model)
    packed = predict(model, CausalLayout(longest), *given)[0].detach()
    assert longest > 0
    assert packed.dtype == torch.bfloat16
    assert float((packed.float() - expected).abs().mean() / expected.abs().mean()) < 0.03


@pytest.mark.slow
def test_dropout_keeps_the_mean_of_attention() -> None:
    random = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, True, True, False], [True, False, False, False], [True, True, False, False]])
    q, k, v = (torch.randn(1, 2, 6, 4, generator=random) for _ in range(3))
    torch.manual_seed(0)
    draws = torch.stack(
        [packed_attention(nn.Identity(), q, k, v, None, dropout=0.3, packing=_packing(mask))[0] for _ in range(4000)]
    )
    plain, _ = packed_attention(nn.Identity(), q, k, v, None, packing=_packing(mask))
    error = draws.std(0) / 4000**0.5
    assert float(draws.std(0).min()) > 0.01
    assert bool(((draws.mean(0) - plain).abs() < 5 * error).all())


def test_packed_attention_equals_values_worked_by_hand() -> None:
    q, k, v = (torch.randn(1, 1, 3, 2, generator=torch.Generator().manual_seed(i)) for i in range(3))
    mask = torch.tensor([[True, True], [True, False]])
    out, _ = packed_attention(nn.Identity(), q, k, v, None, packing=_packing(mask), scaling=0.5)
    assert out.shape == (1, 3, 1, 2)
    share = torch.softmax(0.5 * q[0, 0, 1] @ k[0, 0, :2].T, 0)
    expected = torch.stack([v[0, 0, 0], share @ v[0, 0, :2], v[0, 0, 2]])
    assert torch.allclose(out[0, :, 0], expected, atol=1e-6)


def test_without_packing_the_registered_attention_is_the_plain_one() -> None:
    q, k, v = (torch.randn(2, 2, 5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    out, _ = packed_attention(nn.Identity(), q, k, v, None, is_causal=True)
    assert torch.equal(out, scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))


@pytest.mark.parametrize("unknown", ["softcap", "s_aux", "position_bias"])
def test_packing_is_refused_for_attention_with_further_terms(unknown: str) -> None:
    q = torch.randn(1, 1, 3, 2)
    packing = _packing(torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(Exception, match=f"takes {unknown}"):
        packed_attention(nn.Identity(), q, q, q, None, packing=packing, **{unknown: 1.0})


def _packing(mask: torch.Tensor) -> Packing:
    packing: Packing = pack(torch.zeros_like(mask, dtype=torch.long), mask).inputs["packing"]
    return packing


def _tokenizer() -> hf.PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models

    backend = Tokenizer(models.WordLevel({"a": 0, "<s>": 1, "</s>": 2}, unk_token="a"))
    return hf.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", pad_token="</s>")
