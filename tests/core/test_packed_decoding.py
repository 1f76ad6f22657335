"""Laws of the decoder without padding: the one with it is what it must agree with."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from tiny import GPT, SHAPE, make_causal
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.models import packed_decoding
from rlcore.models.decoding import CausalDecoder
from rlcore.models.packed_decoding import PackedDecoder, pays
from rlcore.models.packing import longest_packed
from rlcore.models.reading import CausalReader
from rlcore.protocols import Decoder, DecodeStep

PAD, NEW = 31, 12
CONFIGS = {
    "gpt2": hf.GPT2Config(**GPT),
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
    model = make_causal(CONFIGS[name])
    assert longest_packed(model) >= 64
    return model


def one(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    weights = torch.randn(16, generator=torch.Generator().manual_seed(0))
    return hidden @ weights, None


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


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", PROMPTS)
@pytest.mark.parametrize("least_shared", [1, 99], ids=["shared", "copied"])
def test_it_says_what_the_padded_decoder_says(
    name: str, kind: str, least_shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_decoding, "LEAST_SHARED", least_shared)
    monkeypatch.setattr("rlcore.models.sequence_cache.BLOCK", 300)
    model, prompts = make(name), PROMPTS[kind]
    padded = CausalDecoder(model, prompts, max_new_tokens=NEW, pad_id=PAD, heads=one)
    packed = PackedDecoder(model, prompts, max_new_tokens=NEW, heads=one)
    assert_they_go_on_alike(padded, packed, padded.start(), packed.start())


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
    PackedDecoder(model, [[1, 2]] * 9 + [[3, 4, 5, 6]], max_new_tokens=1).start()
    assert read == [6]


def test_nothing_is_left_on_the_model_even_if_the_head_raises() -> None:
    model = make("gpt2")

    def broken(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        PackedDecoder(model, [[1]], max_new_tokens=1, heads=broken).start()
    assert not model.get_output_embeddings()._forward_pre_hooks


@pytest.mark.parametrize(
    ("count", "length", "groups", "new", "dtype", "expected"),
    [(140, 1, 20, 9, torch.float32, True), (20, 1, 20, 9, torch.float32, False),
     (140, 40, 140, 9, torch.float32, False), (140, 40, 20, 64, torch.float32, True),
     (140, 1, 20, 64, torch.float32, False), (140, 1, 20, 64, torch.bfloat16, False),
     (140, 40, 140, 64, torch.bfloat16, True), (140, 80, 140, 64, torch.bfloat16, False)],
)  # fmt: skip
def test_a_reader_takes_it_for_large_batches_of_short_or_shared_prompts(
    count: int, length: int, groups: int, new: int, dtype: torch.dtype, expected: bool
) -> None:
    model = make("gpt2").to(dtype)
    prompts = [[i % groups % 30, i % groups // 30] + [1] * length for i in range(count)]
    assert pays(model, prompts, new) is expected
    reader = CausalReader(longest=2**31)
    made = reader.decoder(model, prompts, max_new_tokens=new, heads=None, autocast=torch.no_grad)
    assert isinstance(made, PackedDecoder) is expected
    too_long = CausalReader(longest=length + 2 + new - 1)
    made = too_long.decoder(model, prompts, max_new_tokens=new, heads=None, autocast=torch.no_grad)
    assert not isinstance(made, PackedDecoder)


def test_in_a_narrow_type_it_stays_near_the_padded_decoder() -> None:
    model, prompts = make("llama, grouped heads").to(torch.bfloat16), PROMPTS["groups, ragged"]
    padded, packed = (
        CausalDecoder(model, prompts, max_new_tokens=2, pad_id=PAD), PackedDecoder(model, prompts, max_new_tokens=2)
    )  # fmt: skip
    padded.start(), packed.start()
    tokens = torch.arange(len(prompts))
    expected, said = padded.step(tokens).logits.float(), packed.step(tokens).logits.float()
    assert nn.functional.cosine_similarity(said, expected).min() > 0.999
