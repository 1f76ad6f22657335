"""Tests of host reads in the sampling loop, each of which waits for the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from host_questions import Questions
from tiny import GPT, make_causal
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config

from rlcore.protocols import Decoder, DecodeStep
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.rig.isolate import call_in_new_process
from rlcore_testing.rig.pretended_device import LAUNCH, TO_DEVICE, TO_HOST, WAIT, PretendedDevice
from rlcore_testing.small import make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.sampling import sampler
from rlcore_transformers.sampling.draw import chosen_logprobs, draw, restrict

PROMPTS = [Prompt(text="", tokens=tokens) for tokens in ((1, 2, 3), (4,), (5, 6, 7, 8), (1, 2, 3), (9, 10))]


HOST_READS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "_unique2"}


def reads_on_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the host waits for the values of the arguments of `func`, an operation of ATen."""
    name = func.overloadpacket.__name__
    masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
    is_fill = name.startswith(("index_put", "_index_put")) and args[2].numel() == 1
    by_mask = not is_fill and any(mask is not None and mask.dtype is torch.bool for mask in masks)
    return name in HOST_READS or by_mask


class Kernels(TorchDispatchMode):
    """Count the operations for whose results the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_on_host(func, args):
            self.waits.append(str(func))
        return func(*args, **kwargs or {})


class TableDecoder:
    """Decoder whose logits depend on the last token alone, without waiting for the device."""

    def __init__(self, prompts: Sequence[Sequence[int]]) -> None:
        self.table = torch.randn(32, 32, generator=torch.Generator().manual_seed(0))
        self.last = torch.tensor([prompt[-1] for prompt in prompts])

    def start(self) -> DecodeStep:
        return self.step(self.last)

    def step(self, tokens: Tensor) -> DecodeStep:
        return DecodeStep(self.table[tokens], None)

    def keep(self, rows: Tensor) -> None:
        pass


class SmallPolicy:
    """Minimal policy for sampling."""

    def __init__(self, make: Callable[[Sequence[Sequence[int]], int], Decoder], module: nn.Module) -> None:
        self.module, self.tokenizer, self._make = module, type("Padded", (), {"pad_token_id": 31}), make
        self.eos_token_ids: tuple[int, ...] = (30,)
        self.max_length, self.steers = 64, False
        self.device = torch.device("cpu")

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **asked: bool) -> Decoder:
        return self._make(prompts, max_new_tokens)


def make_policy(*, grows: bool = False) -> SmallPolicy:
    model = make_causal(GPT2Config(**GPT))
    if not grows:
        return SmallPolicy(lambda prompts, _: TableDecoder(prompts), model)
    return SmallPolicy(lambda prompts, room: CausalDecoder(model, prompts, max_new_tokens=room, pad_id=31), model)


def continued(policy: SmallPolicy, **options: Any) -> Trajectories:
    return sample(policy, PROMPTS, SamplingConfig(**options), generator=torch.Generator().manual_seed(3))


def waits(policy: SmallPolicy, **options: Any) -> list[str]:
    with Questions() as questions, Kernels() as kernels:
        continued(policy, **options)
    return questions.waits + kernels.waits


def added(policy: SmallPolicy, **options: Any) -> Counter[str]:
    """Count the host reads of sampling 41 tokens per prompt minus those of sampling 9."""
    continued(policy, max_new_tokens=41)
    few, many = (Counter(waits(policy, eos_token_ids=(), max_new_tokens=number, **options)) for number in (9, 41))
    return many - few


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.7, "top_k": 5, "min_new_tokens": 3}, {"temperature": 0.0}],
    ids=["plain", "restricted", "greedy"],
)
def test_finished_sequences_are_read_from_the_device_once_in_several_tokens(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    assert added(policy, **options) == {"tolist": 40 - 8}  # after each of 40 tokens, minus after each of 8
    monkeypatch.setitem(sampler.READ_EVERY, "cpu", 8)
    assert added(policy, **options) == {"tolist": 5 - 1}  # after tokens 8, 16, 24, 32 and 40, minus after token 8


def test_an_accelerator_is_read_less_often_than_a_cpu() -> None:
    assert sampler.READ_EVERY["cpu"] == 1 < sampler.READ_EVERY["cuda"]


@pytest.mark.parametrize("grows", [False, True], ids=["table", "growing"])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_k": 5, "min_new_tokens": 3, "batch_size": 2}], ids=["plain", "restricted"]
)
def test_reading_the_device_less_often_does_not_change_samples(
    options: dict[str, Any], grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"max_new_tokens": 41, "eos_token_ids": tuple(range(3)), **options}
    often = continued(make_policy(grows=grows), **options)
    monkeypatch.setitem(sampler.READ_EVERY, "cpu", 8)
    seldom = continued(make_policy(grows=grows), **options)
    assert len(set(often.num_actions.tolist())) > 2
    assert seldom.tokens.tolist() == often.tokens.tolist()
    assert seldom.action_mask.tolist() == often.action_mask.tolist()
    assert seldom.ended.tolist() == often.ended.tolist()
    assert set(seldom.columns) == set(often.columns)
    for name in often.columns:
        torch.testing.assert_close(seldom[name], often[name], atol=1e-5, rtol=0)


def test_no_sequence_is_read_beyond_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sampler.READ_EVERY, "cpu", 8)
    policy, read = make_policy(grows=True), []
    policy.max_length = 12  # the cache then fits one of 20 prompts with 8 new tokens, and 19 with 11
    policy.module.transformer.wpe.register_forward_hook(lambda module, args, out: read.append(int(args[0].max())))
    prompts = [Prompt(text="", tokens=(1, 2, 3, 4)), *[Prompt(text="", tokens=(5,))] * 19]
    batch = sample(policy, prompts, SamplingConfig(max_new_tokens=40, eos_token_ids=()))
    assert batch.num_actions.tolist() == [8, *[11] * 19]
    assert max(read) == 10  # the last of 12 tokens is sampled, but not passed through the model


def test_drawing_tokens_reads_nothing_back_from_the_device() -> None:
    logits = torch.empty(4, 5000, device="meta")  # without data, so that a host read raises
    allowed = torch.empty(4, 5000, dtype=torch.bool, device="meta")
    forbidden = torch.empty(2, dtype=torch.long, device="meta")
    wanted = restrict(logits, temperature=0.7, top_k=9, top_p=0.9, forbidden=forbidden, allowed=allowed)
    tokens, logprobs = draw(wanted, torch.empty(4, dtype=torch.float64, device="meta"))
    assert tokens.shape == logprobs.shape == chosen_logprobs(logits, tokens).shape == (4,)


def count_on_a_pretended_device(layers: int) -> dict[str, int]:
    """Return how often something happens on the device while 41 tokens are sampled in place of 9, by its name.

    Prompts have padding, and two are equal.
    """
    with PretendedDevice() as device:
        policy: Any = build_causal_lm(make_llama(layers=layers), CausalLMConfig(), tokenizer=make_tokenizer())
        policy.to(torch.device("pretended", 0))

        def counted(tokens: int) -> Counter[str]:
            device.counts.clear()
            options = SamplingConfig(max_new_tokens=tokens, eos_token_ids=())
            sample(policy, PROMPTS, options, generator=torch.Generator().manual_seed(3))
            return Counter({name: device.total(name) for name in (LAUNCH, TO_DEVICE, TO_HOST, WAIT)})

        counted(9)
        few = counted(9)
        return dict(counted(41) - few)


@pytest.mark.slow
def test_a_decoded_token_of_a_model_reads_nothing_back_and_launches_a_known_number_of_operations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # for the new process
    two, four = (
        call_in_new_process("test_sampling_reads:count_on_a_pretended_device", {"layers": n}, what="counting")
        for n in (2, 4)
    )
    assert {name: two[name] for name in two if name != LAUNCH} == {TO_HOST: 32 // 8}, "finished sequences alone"
    of_a_layer = (four[LAUNCH] - two[LAUNCH]) / 32 / 2
    of_the_rest = two[LAUNCH] / 32 - 2 * of_a_layer
    assert of_a_layer <= 53, "docs/gpus.md states this number, which may fall"
    assert of_the_rest <= 52, "docs/gpus.md states this number, which may fall"
