"""A sampler of a stand-in for vLLM, and a small policy, prompts and seeds for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm_stand_in import StandIn

from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.small import LETTERS, make_gpt2, make_tokenizer
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.policy import ModelPolicy

SAMPLING = SamplingConfig(max_new_tokens=6)
PROMPTS = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in ("ab", "cde", "f", "go on")]
SEEDS = [11, 12, 13, 14]


def make_policy(make: Callable[[], Any] = make_gpt2, **options: Any) -> ModelPolicy:
    policy = build_causal_lm(make(), CausalLMConfig(**options), tokenizer=make_tokenizer())
    assert isinstance(policy, ModelPolicy)
    return policy


def sampler_of(server: StandIn, tmp_path: Path, **options: Any) -> VLLMSampler:
    return VLLMSampler(VLLMConfig(url=server.url, weights_dir=str(tmp_path / "weights"), **options))
