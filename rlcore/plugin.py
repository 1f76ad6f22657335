"""Bring the core's own components through the same door as everyone else's."""

from __future__ import annotations

from rlcore.hookspecs import Register, hookimpl


@hookimpl
def register_pipelines(register: Register) -> None:
    """Register what turns text into tokens."""
    register("prompts", "rlcore.data.prompts:build_prompts", summary="tokenise prompts to be continued")
    register("samples", "rlcore.data.samples:build_samples", summary="tokenise demonstrations, marking the outputs")


@hookimpl
def register_architectures(register: Register) -> None:
    """Register the causal language models of transformers."""
    register(
        "causal_lm",
        "rlcore.models.causal:build_causal_lm",
        config="rlcore.models.settings:CausalLMConfig",
        summary="any AutoModelForCausalLM, with a value head and a reference where the algorithm asks for them",
    )


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the store in memory."""
    register("memory", "rlcore.stores:MemoryStore", summary="rollouts in this process's memory")


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the console and the file of metrics."""
    register(
        "console",
        "rlcore.loggers.console:ConsoleLogger",
        config="rlcore.loggers.settings:ConsoleConfig",
        summary="one line a step, with progress on a terminal",
    )
    register("jsonl", "rlcore.loggers.jsonl:JsonlLogger", summary="metrics.jsonl and completions.jsonl; always on")


@hookimpl
def register_samplers(register: Register) -> None:
    """Register the built-in sampler."""
    register("default", "rlcore.sampling:sample", summary="a preallocated cache; finished rows leave the batch")
