"""Calls and runs with a stand-in for a server with the API of OpenAI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai_stand_in import OpenAIStandIn

import rlcore
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_engines.vllm.config import OpenAIConfig
from rlcore_engines.vllm.openai_sampler import OpenAISampler
from rlcore_testing.small import LETTERS, PROMPTS, make_gpt2, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

RFT = {"name": "rft", "generations": 4, "improve_steps": 1, "optimizer": {"lr": 1e-2}}


def make_policy() -> Any:
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())


def make_prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in texts]


def make_sampler(server: OpenAIStandIn, **options: Any) -> OpenAISampler:
    given = {"url": server.url, "model": "m", "prompts": "text", "backoff_s": 0.0, "timeout_s": 300.0, **options}
    return OpenAISampler(OpenAIConfig(**given))


def sample(server: OpenAIStandIn, texts: tuple[str, ...] = PROMPTS, gen: Any = None, **options: Any) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 6, **(gen or {})})
    return make_sampler(server, **options)(
        make_policy(), make_prompts(*texts), sampling, row_seeds=list(range(len(texts)))
    )


def train(server: OpenAIStandIn, folder: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "trainer": RFT, "prompts": list(PROMPTS), "reward_fn": toy_reward, "gen": {"max_new_tokens": 5}, "loggers": [],
        "sampler": {"name": "openai", "url": server.url, "model": "m", "backoff_s": 0.0},
    }  # fmt: skip
    run = {"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all", **options.pop("run", {})}
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), run=run, **{**given, **options})


def rollouts(result: Any) -> list[tuple[Any, ...]]:
    lines = (result.run_dir / "rollouts.jsonl").read_text().splitlines()
    return [(row["step"], row["prompt"], row["output"], row["reward"]) for row in map(json.loads, lines)]
