"""Tests of sampling with low-precision weights: never stale, never used as the policy's weights, and close to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import make_gpt2
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.decoding.cache import LowPrecisionCopy
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

PROMPTS = [Prompt(text="", tokens=tokens) for tokens in ((1, 2, 3), (4,), (5, 6), (4,))]


def build(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, **options: object) -> ModelPolicy:
    return build_causal_lm(model, CausalLMConfig(**options), tokenizer=tokenizer, value_head=True)


def draw(policy: ModelPolicy, **options: object) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 8, **options})
    return sample(policy, PROMPTS, sampling, generator=torch.Generator().manual_seed(0))


def test_log_probs_of_a_low_precision_copy_are_never_stored_as_those_of_the_policy(
    tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerFast
) -> None:
    policy = build(tiny_gpt2, char_tokenizer, sampling_dtype="bfloat16")
    for options in ({}, {"temperature": 0.7}, {"temperature": 0.0}):
        assert set(draw(policy, **options).columns) == {"sampling_logprobs"}
    batch = draw(policy)
    with torch.no_grad():
        exact = policy.score(batch).logprobs
    gap = (exact - batch["sampling_logprobs"]).abs().max()
    assert 1e-6 < gap < 0.1
    assert set(draw(build(tiny_gpt2, char_tokenizer)).columns) == {"logprobs", "values"}


def test_a_low_precision_copy_has_the_weights_at_the_start_of_sampling(
    tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerFast
) -> None:
    policy = build(tiny_gpt2, char_tokenizer, sampling_dtype="bfloat16")
    draw(policy)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    batch = draw(policy)
    with torch.no_grad():
        exact = policy.score(batch).logprobs
    assert (exact - batch["sampling_logprobs"]).abs().max() < 0.3
    assert batch.tokens.tolist() == draw(build(tiny_gpt2, char_tokenizer, sampling_dtype="bfloat16")).tokens.tolist()


def test_a_low_precision_copy_has_current_buffers_in_their_own_dtype(tiny_llama: LlamaForCausalLM) -> None:
    copies, frequencies = LowPrecisionCopy(tiny_llama, torch.bfloat16), tiny_llama.model.rotary_emb.inv_freq
    copies.fresh()
    frequencies.mul_(1.01)
    copied = copies.fresh().model.rotary_emb.inv_freq
    assert copied.dtype == torch.float32
    assert torch.equal(copied, frequencies)
    assert copied.data_ptr() != frequencies.data_ptr()


def test_sampling_in_low_precision_does_not_change_the_dtype_of_the_model(tiny_gpt2: GPT2LMHeadModel) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_gpt2.state_dict().items()}
    tiny_gpt2.train()
    copy = LowPrecisionCopy(tiny_gpt2, torch.bfloat16).fresh()
    assert {parameter.dtype for parameter in copy.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert tiny_gpt2.training
    assert not copy.training
    assert copy.lm_head.weight is copy.transformer.wte.weight
    for name, tensor in tiny_gpt2.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])


def test_ppo_scores_responses_that_a_low_precision_copy_sampled(make_trainer: Callable[..., Any]) -> None:
    sections = {"model": {"sampling_dtype": "bfloat16"}, "gen": {"max_new_tokens": 5}}
    inputs = {"prompts": ["a", "bc"], "reward_fn": lambda outputs: [float(len(text)) for text in outputs]}
    trainer = make_trainer("ppo", make_gpt2(), sections=sections, inputs=inputs, rollouts=4, batch_size=4)
    assert not trainer.run.sampling.is_exact
    trainer.rollout()
    batch = trainer.store.take()
    with torch.no_grad():
        outputs = trainer.policy().score(batch)
    for name, expected in (("old_logprobs", outputs.logprobs), ("values", outputs.values)):
        torch.testing.assert_close(batch[name], expected, atol=1e-5, rtol=0)
    assert not torch.equal(batch["sampling_logprobs"], batch["old_logprobs"])
