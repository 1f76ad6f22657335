"""Tests of device synchronisation: static decoders add no host reads to the sampling loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from host_questions import Questions
from static_making import FAMILIES, make_causal, make_static, static
from transformers import PreTrainedModel

from rlcore.protocols import Decoder
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_cuda_graphs.graphs import HostReads
from rlcore_transformers.sampling import sampler

PROMPTS = [Prompt(text="", tokens=tokens) for tokens in ((1, 2, 3), (4,), (5, 6, 7, 8), (1, 2, 3), (9, 10))]


class StaticPolicy:
    """Minimal policy for sampling, with the decoder it would use on an accelerator."""

    def __init__(self, model: PreTrainedModel, make: Callable[..., Decoder]) -> None:
        self.module, self.tokenizer, self._make = model, type("Padded", (), {"pad_token_id": 31}), make
        self.eos_token_ids: tuple[int, ...] = (30,)
        self.max_length, self.steers = 64, False
        self.device = torch.device("cpu")

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **asked: bool) -> Decoder:
        return self._make(self.module, prompts, max_new_tokens)


def make_policy(family: str = "gpt2") -> StaticPolicy:
    kept, model = make_static(), make_causal(FAMILIES[family])
    return StaticPolicy(model, lambda *given: static(kept, *given))


def continued(policy: StaticPolicy, **options: Any) -> Trajectories:
    return sample(policy, PROMPTS, SamplingConfig(**options), generator=torch.Generator().manual_seed(3))


def waits(policy: StaticPolicy, **options: Any) -> list[str]:
    with Questions() as questions, HostReads() as kernels:
        continued(policy, **options)
    return questions.waits + kernels.names


def added(policy: StaticPolicy, **options: Any) -> Counter[str]:
    """Count the host reads of sampling 41 tokens per prompt minus those of sampling 9."""
    continued(policy, max_new_tokens=41)  # warm-up: reads that happen once, on the first decoding, are counted here
    few, many = (Counter(waits(policy, eos_token_ids=(), max_new_tokens=number, **options)) for number in (9, 41))
    return many - few


@pytest.mark.parametrize(
    ("family", "options"),
    [("gpt2", {}), ("gpt2", {"temperature": 0.7, "top_k": 5, "min_new_tokens": 3}), ("llama", {"temperature": 0.0})],
    ids=["plain", "restricted", "greedy"],
)
def test_finished_sequences_are_read_from_the_device_once_in_several_tokens(
    family: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy(family)
    assert added(policy, **options) == {"tolist": 40 - 8}  # after each of 40 tokens, minus after each of 8
    monkeypatch.setitem(sampler.READ_EVERY, "cpu", 8)
    assert added(policy, **options) == {"tolist": 5 - 1}  # after tokens 8, 16, 24, 32 and 40, minus after token 8


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7, "top_k": 5, "min_new_tokens": 3, "batch_size": 2}], ids=["plain", "restricted"]
)
def test_reading_the_device_less_often_does_not_change_samples(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"max_new_tokens": 41, "eos_token_ids": tuple(range(6)), **options}
    often = continued(make_policy(), **options)
    monkeypatch.setitem(sampler.READ_EVERY, "cpu", 8)
    seldom = continued(make_policy(), **options)
    assert len(set(often.num_actions.tolist())) > 2
    assert seldom.tokens.tolist() == often.tokens.tolist()
    assert seldom.action_mask.tolist() == often.action_mask.tolist()
    assert seldom.ended.tolist() == often.ended.tolist()
    assert set(seldom.columns) == set(often.columns)
    for name in often.columns:
        torch.testing.assert_close(seldom[name], often[name], atol=1e-5, rtol=0)
