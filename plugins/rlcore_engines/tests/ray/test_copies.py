"""Tests that a policy which was sent to another process computes what the original does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlcore.config import structure
from rlcore.errors import ModelError
from rlcore.sampling import derive_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore_engines.ray import skeleton
from rlcore_testing.rig.policies import PROBE
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm, build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig, Seq2SeqLMConfig

PROMPTS = make_prompts(TEXTS * 2)
SEEDS = derive_seeds(1, range(len(PROMPTS)))


def make_causal(model: Any = None, parts: dict[str, Any] | None = None, **options: Any) -> Any:
    config = structure(CausalLMConfig, options, where="test")
    return build_causal_lm(model or make_gpt2(), config, tokenizer=make_tokenizer(), **(parts or {}))


def copied(policy: Any, precision: str = "no") -> Any:
    copy, tensors = skeleton.load(skeleton.dump(policy), mixed_precision=precision)
    skeleton.fill(tensors, {name: skeleton.to_array(each).copy() for name, each in skeleton.state_of(policy).items()})
    return copy


POLICIES = {
    "tied": make_causal,
    "untied": lambda: make_causal(make_llama()),
    "value head": lambda: make_causal(parts={"value_head": True}),
    "reference": lambda: make_causal(parts={"value_head": True, "reference": True}, unfrozen_layers=1),
    "lora": lambda: make_causal(parts={"reference": True}, peft={"type": "lora", "r": 2}),
    "bfloat16": lambda: make_causal(dtype="bfloat16"),
    "low precision": lambda: make_causal(sampling_dtype="bfloat16"),
    "encoder-decoder": lambda: build_seq2seq_lm(make_t5(), Seq2SeqLMConfig(), tokenizer=make_tokenizer()),
}


@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES)
def test_a_copy_samples_with_the_same_bits(make: Any) -> None:
    policy = make()
    with torch.no_grad():
        for weight in policy.module.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)), alpha=0.02)
    sampling = SamplingConfig(max_new_tokens=6)
    copy = copied(policy)
    one, other = (sample(each, PROMPTS, sampling, row_seeds=SEEDS) for each in (policy, copy))
    assert torch.equal(one.tokens, other.tokens)
    assert one.columns.keys() == other.columns.keys()
    assert all(torch.equal(one[name], other[name]) for name in one.columns)
    pointers = {each.data_ptr() for each in policy.module.parameters()}
    assert not pointers & {each.data_ptr() for each in copy.module.parameters()}


def test_a_copy_steers_by_the_heads_of_the_policy() -> None:
    policy = make_policy(steers=True)
    assert PROBE.keys() <= dict(policy.module.heads).keys()
    sampling = SamplingConfig(max_new_tokens=6, beta=4.0)
    one, other = (sample(each, PROMPTS, sampling, row_seeds=SEEDS) for each in (policy, copied(policy)))
    assert torch.equal(one.tokens, other.tokens)


def test_bytes_of_a_policy_hold_no_weights_and_no_reference() -> None:
    policy = make_causal(parts={"reference": True})
    weights = sum(each.nbytes for each in policy.module.parameters())
    assert len(skeleton.dump(policy)) < weights / 2
    copy, tensors = skeleton.load(skeleton.dump(policy))
    assert tensors.keys() == skeleton.state_of(policy).keys()
    assert not isinstance(copy.reference, torch.nn.Module)


def test_a_copy_computes_in_the_precision_of_the_run() -> None:
    policy = make_causal()
    policy.use_forward(policy.module, autocast=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    sampling = SamplingConfig(max_new_tokens=6, temperature=0.0)
    half = sample(policy, PROMPTS, sampling)["logprobs"]
    plain = make_causal()
    assert torch.equal(sample(copied(plain, "bf16"), PROMPTS, sampling)["logprobs"], half)
    assert not torch.equal(sample(copied(plain), PROMPTS, sampling)["logprobs"], half)


def test_what_cannot_be_sent_is_said() -> None:
    policy = make_causal()
    policy.lock = __import__("threading").Lock()
    with pytest.raises(
        ModelError, match=r"ModelPolicy cannot be sent to another process \(.*lock.*use sampler: default"
    ):
        skeleton.dump(policy)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_arrays_keep_bits_of_any_type_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    given = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(9).to(dtype)
    into = torch.zeros(shape, dtype=dtype)
    skeleton.fill({"x": into}, {"x": skeleton.to_array(given)})
    assert torch.equal(into, given)
    assert skeleton.equals(skeleton.to_array(given), into)
