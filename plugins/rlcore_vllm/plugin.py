"""Registration of the sampler `vllm`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the sampler `vllm`."""
    register(
        "vllm",
        "rlcore_vllm.vllm_sampler:VLLMSampler",
        config="rlcore_vllm.config:VLLMConfig",
        summary="rollouts from vLLM servers, which receive the new weights of every step",
    )
