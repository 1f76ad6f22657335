"""Tests of the decoder without padding: it agrees with the padded decoder."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.protocols import Decoder, DecoderRequest, DecodeStep
from rlcore_testing.small import EOS, PAD
from rlcore_transformers.cpu import packed_decoder as packed_decoding
from rlcore_transformers.cpu.packed_decoder import BlockCache, PackedDecoder, SharedCache, pays
from rlcore_transformers.cpu.plugin import make_decoder
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig
from rlcore_transformers.models.speed.packing import longest_packed

NEW = 12
SHAPE = {
    "vocab_size": 32, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 4, "max_position_embeddings": 64, "pad_token_id": PAD, "bos_token_id": EOS,
    "eos_token_id": EOS,
}  # fmt: skip
CONFIGS = {
    "gpt2": hf.GPT2Config(vocab_size=32, n_embd=16, n_layer=4, n_head=4, n_positions=64),
    "llama, grouped heads": hf.LlamaConfig(**SHAPE),
    "neox": hf.GPTNeoXConfig(**SHAPE),
    "opt": hf.OPTConfig(**SHAPE, ffn_dim=32, word_embed_proj_dim=16, dropout=0.0),
}
PROMPTS = {
    "ragged, all different": [[1, 2], [3], [4, 5, 6, 7, 8], [9, 10, 11], [12, 13]],
    "ragged, some the same": [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10], [1, 2, 3], [4], [4]],
    "groups of three and two": [[3, 4, 5], [7, 8, 9], [3, 4, 5], [7, 8, 9], [3, 4, 5]],
    "groups, ragged": [[7], [3, 4, 5, 6], [7], [3, 4, 5, 6], [3, 4, 5, 6], [7]],
    "one prompt": [[3, 4]] * 5,
    "alike at first": [[1, 2, 3, 4], [1, 2, 3, 5, 6], [1, 2, 3, 4, 7], [1, 2], [1, 2, 3]],
}
KEPT = {2: [2, 3, 4], 5: [0, 2], 9: [1]}


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model: PreTrainedModel = hf.AutoModelForCausalLM.from_config(copy.deepcopy(CONFIGS[name])).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)  # predictions are then far from uniform
    assert longest_packed(model) >= 64
    return model


def packed_decoder(model: PreTrainedModel, prompts: list[list[int]], **options: Any) -> PackedDecoder:
    return PackedDecoder(request(model, prompts, **options))


def request(
    model: PreTrainedModel, prompts: list[list[int]], *, heads: Any = None, speed: SpeedConfig = ALL_ON, **asked: Any
) -> DecoderRequest:
    asked = {"max_new_tokens": NEW, "packs": True} | asked
    return DecoderRequest(model=model, prompts=prompts, read_heads=heads, speed=speed, **asked)


def one(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    weights = torch.randn(16, generator=torch.Generator().manual_seed(0))
    return hidden @ (weights / weights.norm()), None


def assert_they_go_on_alike(padded: Decoder, packed: Decoder, expected: DecodeStep, said: DecodeStep) -> None:
    count = len(expected.logits)
    for step in range(NEW):
        torch.testing.assert_close(said.logits, expected.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(said.values, expected.values, atol=1e-5, rtol=0)
        if step in KEPT:
            rows = torch.tensor(KEPT[step])
            padded.keep(rows), packed.keep(rows)
            count = len(rows)
        tokens = (torch.arange(count) * 7 + step * 3 + 1) % 30
        expected, said = padded.step(tokens), packed.step(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize(("least_shared", "cache"), [(99, BlockCache), (1, SharedCache)])
def test_packed_decoding_has_the_outputs_of_padded_decoding(
    name: str, kind: str, least_shared: int, cache: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_decoding, "MIN_SHARED_PROMPT", least_shared)
    monkeypatch.setattr("rlcore_transformers.cpu.packed_decoder.WIDTH", 3)
    model, prompts = make(name), PROMPTS[kind]
    padded = CausalDecoder(model, prompts, max_new_tokens=NEW, pad_id=PAD, heads=one)
    packed = packed_decoder(model, prompts, max_new_tokens=NEW, heads=one)
    expected, said = padded.start(), packed.start()
    if cache is not SharedCache or 2 * len({tuple(prompt) for prompt in prompts}) <= len(prompts):
        assert type(packed.cache) is cache
    assert_they_go_on_alike(padded, packed, expected, said)


def test_a_block_of_the_cache_holds_only_sequences_that_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcore_transformers.cpu.packed_decoder.WIDTH", 4)
    model = make("gpt2")
    decoder = packed_decoder(model, [[1] * n for n in (5, 3, 10, 4, 6)], max_new_tokens=7)
    decoder.start()
    shapes = [tuple(keys.shape[::2]) for keys, _ in decoder.cache.blocks[0]]
    assert shapes == [(5, 4), (3, 4), (5, 4)]  # columns 0 to 3, 4 to 7 of prompts longer than 4, 8 to 11
    for token in range(7):
        decoder.step(torch.full((5,), token))
    assert [tuple(keys.shape[::2]) for keys, _ in decoder.cache.blocks[0]] == [*shapes, (5, 4), (5, 1)]
    assert not decoder.cache.blocks[0][-1][0][:, :, :1].eq(0).all()
    decoder.keep(torch.tensor([0, 2]))  # of 5 and 10 tokens
    assert [len(keys) for keys, _ in decoder.cache.blocks[0]] == [2] * 5


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", PROMPTS)
def test_prompts_read_packed_are_continued_as_padded_ones(name: str, kind: str) -> None:
    model, prompts, read = make(name), [[*prompt, 11] for prompt in PROMPTS[kind]], []
    padded, packed = (
        CausalDecoder(model, prompts, max_new_tokens=NEW, pad_id=PAD, heads=one, packs=packs) for packs in (False, True)
    )
    expected = padded.start()
    hook = model.get_input_embeddings().register_forward_hook(lambda module, args, out: read.append(args[0].numel()))
    said = packed.start()
    hook.remove()
    assert read == [len({tuple(prompt[: i + 1]) for prompt in prompts for i in range(len(prompt))})]
    assert_they_go_on_alike(padded, packed, expected, said)


def test_a_prompt_is_read_once_and_without_padding() -> None:
    model, read = make("gpt2"), []
    model.transformer.wte.register_forward_hook(lambda module, args, out: read.append(args[0].numel()))
    packed_decoder(model, [[1, 2]] * 9 + [[3, 4, 5, 6]], max_new_tokens=1).start()
    assert read == [6]


def test_decoding_leaves_no_hook_on_the_model_even_if_the_head_raises() -> None:
    model = make("gpt2")

    def broken(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        packed_decoder(model, [[1]], max_new_tokens=1, heads=broken).start()
    assert not model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize(("count", "expected"), [(31, False), (32, True)])
def test_packed_decoding_is_used_for_large_batches_that_fit_the_context(count: int, expected: bool) -> None:
    model, prompts = make("gpt2"), [[i % 30, i // 30, 1] for i in range(count)]
    for longest in (3 + 9, 3 + 9 - 1):
        made = CausalLayout(longest=longest).decoder(
            model, prompts, max_new_tokens=9, heads=None, autocast=torch.no_grad
        )
        assert isinstance(made, PackedDecoder) is (expected and longest == 12)


@pytest.mark.parametrize(
    ("length", "groups", "new", "expected"),
    [(1, 40, 9, BlockCache), (40, 40, 9, BlockCache), (40, 20, 9, SharedCache), (40, 21, 9, BlockCache)],
)
def test_the_kind_of_cache_depends_on_the_lengths(length: int, groups: int, new: int, expected: type) -> None:
    prompts = [[i % groups % 30, i % groups // 30, *[1] * (length - 1)] for i in range(40)]
    decoder = packed_decoder(make("gpt2"), prompts, max_new_tokens=new)
    decoder.start()
    assert type(decoder.cache) is expected


@pytest.mark.parametrize("is_mixed", [False, True], ids=["weights", "autocast"])
def test_packed_decoding_in_bfloat16_stays_near_padded_decoding(
    is_mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlcore_transformers.cpu.packed_decoder.WIDTH", 3)
    model, prompts = make("llama, grouped heads"), PROMPTS["groups, ragged"]
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if is_mixed else nullcontext
    model.to(torch.float32 if is_mixed else torch.bfloat16)
    padded, packed = (
        kind(model, prompts, max_new_tokens=2, autocast=autocast) for kind in (CausalDecoder, packed_decoder)
    )
    padded.start(), packed.start()
    tokens = torch.arange(len(prompts))
    expected, said = padded.step(tokens).logits.float(), packed.step(tokens).logits.float()
    assert nn.functional.cosine_similarity(said, expected).min() > 0.999


def test_it_is_offered_where_it_is_on_and_faster() -> None:
    model, prompts = make("gpt2"), [[i % 30, i // 30, 1] for i in range(32)]
    assert isinstance(make_decoder(request(model, prompts)), PackedDecoder)
    assert make_decoder(request(model, prompts, packs=False)) is None
    assert make_decoder(request(model, prompts, speed=SpeedConfig(packed_decoding=False))) is None
    assert make_decoder(request(model, prompts[:31])) is None
    assert make_decoder(request(make("gpt2").to("meta"), prompts)) is None
    assert [pays(request(model, prompts[:8], waiting=waiting)) for waiting in (7, 8)] == [False, True]


def test_prompts_are_stored_for_each_sample_where_shared_prompts_are_off() -> None:
    decoders = [
        packed_decoder(make("gpt2"), [[1] * 20] * 4, speed=SpeedConfig(shared_prompts=is_on)) for is_on in (True, False)
    ]
    for decoder in decoders:
        decoder.start()
    assert [type(decoder.cache) for decoder in decoders] == [SharedCache, BlockCache]
