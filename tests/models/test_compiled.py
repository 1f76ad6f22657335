"""Tests of options that compile a model or replace its layers: what they change, and where they are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlcore.errors import ConfigError, ModelError
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.forward import compiled
from rlcore_transformers.models.freezing import decoder_blocks
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

CALLS: list[str] = []
BACKEND = "counting_for_tests"


@torch._dynamo.register_backend(name=BACKEND)
def count(graph: Any, _: Any) -> Any:
    CALLS.append("compiled")

    def run(*inputs: Any) -> Any:
        CALLS.append("run")
        return graph.forward(*inputs)

    return run


def build(model: Any, *, reference: bool = False, **options: Any) -> ModelPolicy:
    return build_causal_lm(model, CausalLMConfig(**options), tokenizer=make_tokenizer(), reference=reference)


def batch(*lengths: int) -> Trajectories:
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    tokens = torch.randint(0, 30, mask.shape, generator=torch.Generator().manual_seed(sum(lengths)))
    return Trajectories(tokens, mask, mask & (mask.cumsum(1) > 1), torch.ones(len(lengths), dtype=torch.bool))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "options"),
    [(make_llama, {}), (make_gpt2, {"peft": {"type": "lora", "r": 2}})],
    ids=["full", "lora"],
)
def test_compiled_blocks_have_the_log_probs_and_gradients_of_the_model(make: Any, options: Any) -> None:
    policies = [build(make(), **options), build(make(), **options, compile=BACKEND)]
    CALLS.clear()
    for given in (batch(5, 8, 3), batch(4, 11)):
        grads = []
        for policy in policies:
            policy.module.train()
            policy.module.zero_grad()
            outputs = policy.score(given)
            outputs.logprobs.sum().backward()
            grads.append([outputs.logprobs, *(each.grad for each in policy.module.parameters() if each.requires_grad)])
        assert len(grads[0]) == len(grads[1]) > 1
        assert all(torch.allclose(*pair, atol=1e-4, rtol=1e-4) for pair in zip(*grads, strict=True))
    assert "run" in CALLS


@pytest.mark.slow
def test_sampling_references_and_copies_run_blocks_as_they_are() -> None:
    policy = build(make_llama(), reference=True, compile=BACKEND)
    with torch.no_grad():
        policy.score(batch(5, 8))
    CALLS.clear()
    sample(policy, [Prompt("ab", (1, 2))] * 2, SamplingConfig(max_new_tokens=3), row_seeds=[1, 2])
    policy.reference_score(batch(5, 8))
    policy.sampling_copy().score(batch(5, 8))
    assert not CALLS
    assert not any("forward" in vars(block) for block in decoder_blocks(policy.model))
    with compiled(policy.model):
        assert all("forward" in vars(block) for block in decoder_blocks(policy.model))


def test_an_unknown_compiler_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"model.compile = 'nonsense': torch.compile cannot use it.*inductor"):
        build(make_llama(), compile="nonsense")


def test_compiled_blocks_are_not_recomputed() -> None:
    with pytest.raises(ConfigError, match=r"model.compile = 'eager': blocks whose activations are recomputed"):
        build(make_llama(), compile="eager", gradient_checkpointing=True)


def test_compiled_blocks_are_not_divided() -> None:
    policy = build(make_llama(), compile=BACKEND)
    with pytest.raises(ModelError, match=r"run.shard = 'fsdp': blocks that model.compile compiles"):
        policy.check_divisible("fsdp")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine can run the kernels")
def test_liger_kernels_are_refused_without_a_gpu() -> None:
    with pytest.raises(ConfigError, match=r"model.liger_kernel = true: these kernels run on GPUs through Triton"):
        build(make_llama(), liger_kernel=True)
