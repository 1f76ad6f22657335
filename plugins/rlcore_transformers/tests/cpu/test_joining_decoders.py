"""Tests of decoders that prompts join while they run: each sequence continues as with its own decoder."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore.protocols.learners import joins
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer
from rlcore_transformers.cpu import packed_decoder
from rlcore_transformers.cpu import packed_decoder as block_cache
from rlcore_transformers.cpu.packed_decoder import PackedDecoder, pays
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder
from rlcore_transformers.models.model_options import ALL_ON, CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the size thresholds, so that small batches run like large ones."""
    for name, number in {"MIN_ROWS": 1, "MIN_SHARED_PROMPT": 99}.items():
        monkeypatch.setattr(packed_decoder, name, number)
    monkeypatch.setattr(block_cache, "WIDTH", 3)


def make_policy(model: PreTrainedModel, **options: Any) -> ModelPolicy:
    return build_causal_lm(model, CausalLMConfig(**options), tokenizer=make_tokenizer())


def request(model: PreTrainedModel, prompts: list[list[int]], **asked: Any) -> DecoderRequest:
    return DecoderRequest(model=model, prompts=prompts, speed=ALL_ON, **{"max_new_tokens": 40} | asked)


@pytest.mark.parametrize(("waiting", "expected"), [(0, False), (7, False), (8, True)])
def test_smaller_batches_run_packed_if_as_many_prompts_wait_as_begin(waiting: int, expected: bool) -> None:
    model = make_policy(make_gpt2()).model
    prompts = [[i, 1] for i in range(8)]
    assert pays(request(model, prompts, waiting=waiting)) is expected
    assert not pays(request(model, prompts[:7], waiting=16))
    assert not pays(request(model, [[1] * 16] * 8, waiting=16))  # which share their prompt, so none joins


def one(hidden: Tensor) -> tuple[Tensor, Tensor | None]:
    return hidden.mean(1), None


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("kept", [[0, 1, 2], [1, 2], [2]], ids=["all", "two", "the shortest"])
def test_prompts_that_join_a_batch_are_continued_as_in_a_batch_of_their_own(num_steps: int, kept: list[int]) -> None:
    model, room = make_policy(make_llama()).model, 5
    first, more = (
        [[1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12]],
        [[1, 2, 3], [13, 14, 15, 16, 17, 18, 19, 20], [1, 2, 3]],
    )
    decoder = PackedDecoder(request(model, first, max_new_tokens=room, read_heads=one))
    padded = [CausalDecoder(model, prompts, max_new_tokens=9, heads=one) for prompts in (first, more)]
    decoder.start(), padded[0].start()
    for step in range(num_steps):
        tokens = torch.tensor([3, 5, 7]) + step
        decoder.step(tokens), padded[0].step(tokens)
    decoder.keep(torch.tensor(kept)), padded[0].keep(torch.tensor(kept))
    assert joins(decoder) is decoder
    said, expected = decoder.join(more), padded[1].start()
    for step in range(4):
        torch.testing.assert_close(said.logits[-3:], expected.logits[-3:], atol=1e-5, rtol=0)
        tokens = torch.arange(len(kept) + 3) * 4 + step
        said = decoder.step(tokens)
        parts = [padded[0].step(tokens[:-3]), padded[1].step(tokens[-3:])]
        expected = DecodeStep(*(torch.cat([getattr(part, name) for part in parts]) for name in ("logits", "values")))
        torch.testing.assert_close(said.logits, expected.logits, atol=1e-5, rtol=0)
        torch.testing.assert_close(said.values, expected.values, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("small")
def test_a_long_prompt_can_join_a_batch_of_short_sequences() -> None:
    model, long = make_policy(make_gpt2()).model, [1, 2, 3, 4, 5, 6, 7, 8]
    decoder = PackedDecoder(request(model, [long], max_new_tokens=9))
    decoder.start(), decoder.join([[12]])
    decoder.keep(torch.tensor([1]))
    decoder.join([[13], long])
    said = decoder.step(torch.tensor([3, 4, 5]))
    for row, tokens in enumerate(([12, 3], [13, 4], [*long, 5])):
        expected = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        torch.testing.assert_close(said.logits[row], expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("small")
def test_log_probs_of_prompts_that_join_a_bfloat16_decoder_are_marked_as_not_exact() -> None:
    decoder = make_policy(make_gpt2(), sampling_dtype="bfloat16").decoder([[1, 2]], max_new_tokens=9, waiting=1)
    decoder.start()
    joining = joins(decoder)
    assert joining is not None
    assert not joining.join([[3]]).is_exact
