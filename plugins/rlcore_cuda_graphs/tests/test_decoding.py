"""Tests of static decoding: it equals ordinary decoding token for token, run eagerly or replayed from a CUDA graph."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from static_making import (
    FAMILIES,
    RAGGED,
    VOCABULARY,
    Recorder,
    assert_same,
    make_causal,
    make_static,
    ordinary,
    run,
    static,
)
from torch import Tensor, nn

from rlcore.errors import ModelError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_cuda_graphs.decoding import StaticDecoder
from rlcore_cuda_graphs.plugin import with_static_decoding
from rlcore_cuda_graphs.steps import Workspace
from rlcore_ilql.config import q_heads
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", FAMILIES)
def test_every_static_step_has_the_outputs_of_an_ordinary_decoder(name: str, recorded: bool) -> None:
    model, recorder = make_causal(FAMILIES[name]), Recorder()
    kept = make_static(recorder if recorded else None)
    make = partial(static, kept)
    assert isinstance(make(model, RAGGED, 12), StaticDecoder)
    proved = recorder.num_replays
    expected = run(ordinary, model)
    assert [len(each) for each in expected] == [5, 5, 5, 4, 4, 3, 2, 2, 1, 1, 1, 1, 1]
    assert_same(run(make, model), expected)
    assert recorder.num_replays - proved == (12 if recorded else 0)


@pytest.mark.parametrize("name", FAMILIES)
def test_mixed_precision_is_no_obstacle_though_keys_and_values_differ_in_type(name: str) -> None:
    model, tokens = make_causal(FAMILIES[name]), torch.tensor([3, 1, 4, 1, 5])
    mixed = partial(torch.autocast, "cpu", torch.bfloat16)
    make = partial(static, make_static(), autocast=mixed)
    decoder, expected = make(model, RAGGED, 2), ordinary(model, RAGGED, 2, autocast=mixed)
    assert isinstance(decoder, StaticDecoder)
    pairs = [(decoder.start(), expected.start())]
    pairs += [(decoder.step(tokens), expected.step(tokens)) for _ in range(2)]
    for got, due in pairs:
        assert float((got.logits - due.logits).abs().max()) <= 0.02 * float(due.logits.abs().max())


@pytest.mark.parametrize("recorded", [False, True])
def test_a_call_of_a_static_decoder_does_not_affect_the_next(recorded: bool) -> None:
    model, recorder = make_causal(FAMILIES["llama"]), Recorder()
    make = partial(static, make_static(recorder if recorded else None))
    expected = run(ordinary, model)
    assert_same(run(make, model), expected)
    recordings = len(recorder.tapes)
    with torch.no_grad():  # NaN weights leave NaNs in the cache
        weight = model.model.layers[0].self_attn.v_proj.weight
        good = weight.clone()
        weight.fill_(torch.nan)
        assert all(each.isnan().all() for each in run(make, model))
        weight.copy_(good)
    assert_same(run(make, model), expected)
    short = make(model, [[3]], 2)
    assert_same([short.start().logits], [ordinary(model, [[3]], 2).start().logits])
    assert len(recorder.tapes) == recordings


def test_moving_to_a_smaller_bucket_keeps_the_cache_also_after_buffers_have_grown() -> None:
    model = make_causal(FAMILIES["llama"])
    make = partial(static, make_static(Recorder()), model)
    for count in (3, 6, 6):
        prompts = [[i, i + 3, i + 5] for i in range(count)]
        decoder, expected = make(prompts, 4), ordinary(model, prompts, 4)
        decoder.start(), expected.start()
        rows = torch.arange(count)
        for kept in (rows, rows[-3:], rows[-1:]):
            decoder.keep(kept - rows[0]), expected.keep(kept - rows[0])
            rows = kept
            assert_same([decoder.step(kept).logits], [expected.step(kept).logits])


def test_unused_rows_of_a_bucket_never_exceed_the_positions_of_the_model() -> None:
    model = make_causal(FAMILIES["gpt2"])
    make = partial(static, make_static(), model)
    ten, nine = [[1] * 21] * 9 + [[3]], [[i, i + 1] for i in range(9)]
    for prompts in (ten, nine):  # the tenth row of the second call is unused
        decoder, expected = make(prompts, 2), ordinary(model, prompts, 2)
        decoder.start(), expected.start()
        tokens = torch.arange(len(prompts))
        assert len(decoder._step.bucket.tokens) == 10
        assert_same([decoder.step(tokens).logits], [expected.step(tokens).logits])


@pytest.mark.parametrize("recorded", [False, True])
def test_weights_that_change_in_place_are_followed_and_weights_that_move_too(recorded: bool) -> None:
    model, recorder = make_causal(FAMILIES["qwen2"]), Recorder()
    make = partial(static, make_static(recorder if recorded else None))
    before = run(make, model)
    recordings = len(recorder.tapes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.2)
    expected = run(ordinary, model)
    assert float((torch.cat(expected) - torch.cat(before)).abs().max()) > 0.1
    assert_same(run(make, model), expected)
    assert len(recorder.tapes) == recordings
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.8
    expected = run(ordinary, model)
    assert_same(run(make, model), expected)
    assert (len(recorder.tapes) > recordings) == recorded


def test_static_decoding_gives_the_values_and_advantages_of_ordinary_decoding() -> None:
    model, value, advantage = make_causal(FAMILIES["gpt2"]), nn.Linear(16, 1), nn.Linear(16, VOCABULARY)

    def heads(hidden: Tensor) -> tuple[Tensor, Tensor]:
        return value(hidden)[:, 0], advantage(hidden)

    decoders = [
        ordinary(model, RAGGED, 6, heads=heads),
        static(make_static(Recorder()), model, RAGGED, 6, heads=heads),
    ]
    said = [decoder.start() for decoder in decoders]
    for at in range(6):
        for name in ("logits", "values", "advantages"):
            assert_same([getattr(said[1], name)], [getattr(said[0], name)])
        said = [decoder.step(torch.arange(5) * 3 + at) for decoder in decoders]


def test_later_steps_do_not_overwrite_outputs_that_were_returned() -> None:
    decoder = static(make_static(Recorder()), make_causal(FAMILIES["gpt2"]), [[1], [2]], 4)
    decoder.start()
    first = decoder.step(torch.tensor([3, 4])).logits
    before = first.clone()
    decoder.step(torch.tensor([5, 6]))
    assert torch.equal(first, before)


def test_decoders_that_live_side_by_side_do_not_share_buffers() -> None:
    model = make_causal(FAMILIES["gpt2"])
    kept = make_static(Recorder())
    one, other = static(kept, model, RAGGED, 6), static(kept, model, RAGGED[::-1], 6)
    plain = ordinary(model, RAGGED, 6)
    for decoder in (one, other, plain):
        decoder.start()
    for at in range(6):
        tokens = torch.arange(5) * 4 + at
        expected = plain.step(tokens).logits
        assert_same([one.step(tokens).logits], [expected])
        assert_same([other.step(tokens.flip(0)).logits.flip(0)], [expected])
    del one, other
    gc.collect()
    assert kept._holder is not None
    assert kept._holder() is None


def test_a_batch_moves_to_a_bucket_half_as_large_and_no_other() -> None:
    model, recorder = make_causal(FAMILIES["gpt2"]), Recorder()
    workspace = Workspace(model, nullcontext, recorder.make)
    decoder = StaticDecoder(model, [[i, i + 1] for i in range(1, 14)], max_new_tokens=9, lend=lambda _: workspace)
    decoder.start()
    heights = []
    for left in (13, 12, 8, 7, 4, 3, 2, 1):
        decoder.keep(torch.arange(left))
        heights.append(len(decoder._step.bucket.tokens))
        assert len(decoder.step(torch.arange(left)).logits) == left
    assert heights == [14, 14, 14, 7, 7, 3, 3, 1]
    assert workspace.num_steps == len(recorder.tapes) == 4


def test_decoding_more_tokens_than_the_buffers_hold_is_an_error() -> None:
    decoder = static(make_static(), make_causal(FAMILIES["gpt2"]), [[1, 2]], 2)
    decoder.start(), decoder.step(torch.tensor([1])), decoder.step(torch.tensor([1]))
    with pytest.raises(ModelError, match="the buffers hold 4 tokens"):
        decoder.step(torch.tensor([1]))


def build(config: Any, decoding: str, **options: Any) -> Any:
    torch.manual_seed(7)
    built = build_causal_lm(
        make_causal(config), CausalLMConfig(decoding=decoding), tokenizer=make_tokenizer(), **options
    )
    return with_static_decoding(built)


def sampled(policy: Any, seed: int, **options: Any) -> Trajectories:
    texts = [(3, 4, 5), (6,), (7, 8, 9, 10, 11, 12), (3, 4, 5), (3, 4, 5), (13, 14)] * 3
    prompts = [Prompt(text="", tokens=tokens) for tokens in texts]
    sampling = SamplingConfig(**{"max_new_tokens": 24, "eos_token_ids": (1, 2, 3, 4), **options})
    return sample(policy, prompts, sampling, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_static_sampling_draws_the_same_tokens_log_probs_and_values(name: str) -> None:
    plain, fixed = (
        build(FAMILIES[name], decoding, value_head=True, heads=q_heads(2)) for decoding in ("dynamic", "static")
    )
    for seed, options in enumerate(({}, {"batch_size": 5}, {"beta": 0.5}, {"temperature": 1.7, "top_k": 9})):
        expected, got = (sampled(policy, seed, **options) for policy in (plain, fixed))
        assert len(set(expected.num_actions.tolist())) > 2
        assert torch.equal(got.tokens, expected.tokens)
        assert torch.equal(got.action_mask, expected.action_mask)
        for column in expected.columns:
            torch.testing.assert_close(got[column], expected[column], atol=1e-5, rtol=1e-5)
        with torch.no_grad():
            for policy in (plain, fixed):
                for parameter in policy.module.parameters():
                    parameter.mul_(1.02)
