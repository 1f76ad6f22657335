"""Laws of the choice between decoders: static where it is exact, as before elsewhere, and the reason is said."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers as hf
from static_making import FAMILIES, RAGGED, SHAPE, Recorder, Tape, assert_same, ordinary, run, static
from tiny import make_causal
from torch import Tensor, nn

from rlcore.models.causal import build_causal_lm
from rlcore.models.settings import CausalLMConfig
from rlcore_cuda_graphs.cache import bucket_size
from rlcore_cuda_graphs.choice import StaticDecoding, find_refusal
from rlcore_cuda_graphs.decoding import StaticDecoder
from rlcore_cuda_graphs.graphs import HostReads
from rlcore_cuda_graphs.steps import Workspace

REFUSED = {
    "mistral, short window": (hf.MistralConfig(**SHAPE, sliding_window=5), "a window shorter than"),
    "lfm2, convolutions": (hf.Lfm2Config(**SHAPE, layer_types=["conv", "full_attention"]),
                           "remembers something else"),
    "mamba, no attention": (hf.MambaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, state_size=4),
                            "remembers something else"),
    "bloom, no positions": (hf.BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=2), "ValueError"),
    "experts chosen on the host": (hf.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2,
                                                    experts_implementation="eager"), "reads numbers back"),
}  # fmt: skip


def test_buckets_are_never_too_small_and_waste_little() -> None:
    for size in range(1, 2000):
        rows, columns = bucket_size(size, 1), bucket_size(size, 64)
        assert size <= rows <= 1.25 * size
        assert columns >= size
        assert columns % 64 == 0
    assert len({bucket_size(size, 1) for size in range(65, 129)}) == 4


@pytest.mark.parametrize("name", FAMILIES)
def test_no_step_reads_back_from_the_device(name: str) -> None:
    model = make_causal(FAMILIES[name])
    decoder = static(StaticDecoding(everywhere=True), model, RAGGED, 4)
    decoder.start()
    with HostReads() as reads:
        decoder.step(torch.arange(5))
        decoder.step(torch.arange(5))
    assert reads.names == []


def test_what_reads_back_from_the_device_is_seen() -> None:
    numbers, mask = torch.arange(4), torch.tensor([True, False, True, False])
    reading: list[Callable[[], object]] = [
        numbers[0].item, lambda: int(numbers.sum()), lambda: bool(numbers.any()), mask.nonzero,
        lambda: numbers[mask], lambda: numbers.masked_select(mask), lambda: torch.equal(numbers, numbers),
        lambda: numbers.clone().__setitem__(mask, numbers[:2]), numbers.unique,
        lambda: numbers.repeat_interleave(numbers),
    ]  # fmt: skip
    for read in reading:
        with HostReads() as reads:
            read()
        assert len(reads.names) > 0
    with HostReads() as reads:
        numbers[torch.tensor([1, 0])], numbers.masked_fill(mask, 0), numbers.clone().__setitem__(mask, 0)
        torch.where(mask, numbers, 0), numbers.sort(), numbers.clone().index_copy_(0, numbers, numbers)
    assert reads.names == []


@pytest.mark.parametrize("name", REFUSED)
def test_families_that_do_not_fit_decode_as_before_and_say_why(
    name: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    config, reason = REFUSED[name]
    model, kept = make_causal(config), StaticDecoding(everywhere=True, make_graphs=Recorder())
    for _ in range(2):
        assert static(kept, model, RAGGED, 4) is None
    said = capsys.readouterr().err
    assert said.count("decoding is not static") == 1
    assert reason in said


def test_a_model_that_says_something_else_when_replayed_is_refused() -> None:
    model = make_causal(FAMILIES["gpt2"])
    counted = [0]

    def drift(module: nn.Module, args: Any, out: Tensor) -> Tensor:
        counted[0] += args[0].shape[1] == 1
        return out + 0.01 * counted[0]

    assert find_refusal(model, nullcontext, Recorder().make) is None
    hook = model.lm_head.register_forward_hook(drift)
    refusal = find_refusal(model, nullcontext, Recorder().make)
    hook.remove()
    assert refusal is not None
    assert "something else" in refusal


def test_a_step_that_cannot_be_recorded_is_a_refusal_and_never_an_error() -> None:
    class Broken(Tape):
        def record(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
            call()
            raise RuntimeError("operation not permitted when stream is capturing")

    model = make_causal(FAMILIES["gpt2"])
    refusal = find_refusal(model, nullcontext, Broken)
    assert refusal is not None
    assert "not permitted" in refusal
    workspace = Workspace(model, nullcontext, Broken)
    got = run(lambda *given: StaticDecoder(*given[:2], max_new_tokens=given[2], lend=lambda _: workspace), model)
    assert_same(got, run(ordinary, model))


def test_a_model_that_trains_decodes_as_before() -> None:
    model, kept = make_causal(FAMILIES["gpt2"]), StaticDecoding(everywhere=True)
    assert isinstance(static(kept, model, RAGGED, 4), StaticDecoder)
    model.train()
    assert static(kept, model, RAGGED, 4) is None


@pytest.mark.parametrize(("decoding", "expected"), [("auto", False), ("dynamic", False), ("static", True)])
def test_the_option_chooses_and_auto_is_as_before_without_a_gpu(
    decoding: Any, expected: bool, char_tokenizer: Any
) -> None:
    config = CausalLMConfig(decoding=decoding)
    policy = build_causal_lm(make_causal(FAMILIES["llama"]), config, tokenizer=char_tokenizer)
    policy.module.eval()
    assert isinstance(policy.decoder(RAGGED, max_new_tokens=3), StaticDecoder) is expected


def test_a_policy_whose_model_is_refused_samples_all_the_same(char_tokenizer: Any) -> None:
    model = make_causal(REFUSED["bloom, no positions"][0])
    policy = build_causal_lm(model, CausalLMConfig(decoding="static"), tokenizer=char_tokenizer)
    policy.module.eval()
    assert_same([policy.decoder(RAGGED, max_new_tokens=3).start().logits], [ordinary(model, RAGGED, 3).start().logits])
