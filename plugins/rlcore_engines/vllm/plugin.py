"""Registration of the samplers `vllm` and `openai`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_samplers(register: Register) -> None:
    """Register both samplers."""
    register(
        "vllm",
        "rlcore_engines.vllm.vllm_sampler:VLLMSampler",
        config="rlcore_engines.vllm.config:VLLMConfig",
        summary="rollouts from vLLM servers, which receive the new weights of every step",
    )
    register(
        "openai",
        "rlcore_engines.vllm.openai_sampler:OpenAISampler",
        config="rlcore_engines.vllm.config:OpenAIConfig",
        summary="completions from any server with the API of OpenAI, whose model is not the policy",
    )
