"""Environments and tokenizers of the tests."""

from __future__ import annotations

from typing import Any

from rlcore.config import structure
from rlcore.protocols import Policy, Step, Turn
from rlcore.settings import TrainConfig
from rlcore.types import Prompt
from rlcore_environments.player import Player
from rlcore_testing.small import make_gpt2, make_llama, make_tokenizer
from rlcore_transformers.data.pipelines import PROMPTS
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}a {{ m.content }}</s>{% else %}{{ m.role[0] }} "
    "{{ m.content }}.{% endif %}{% endfor %}{% if add_generation_prompt %}a {% endif %}"
)
"""A chat template whose words are all in the vocabulary of `make_tokenizer`."""


class Echo:
    """Repeats the last letter; the reward of a turn is its number of letters a, and the third turn is the last."""

    def reset(self, row: Any, *, seed: int) -> str:
        self.seed = seed
        return "go"

    def step(self, turn: Turn) -> Step:
        done = turn.index == 2
        return Step(
            messages=f"you {turn.text[-1:]}", reward=float(turn.text.count("a")), done=done,
            info={"success": done, "letters": len(turn.text)},
        )  # fmt: skip


def make_policy(kind: str = "gpt2", *, chat: bool = False, **parts: Any) -> Policy:
    tokenizer = make_tokenizer()
    if chat:
        tokenizer.chat_template = TEMPLATE
    model = {"gpt2": make_gpt2, "llama": make_llama}[kind]()
    policy: Policy = build_causal_lm(model, CausalLMConfig(), tokenizer=tokenizer, **parts)
    return policy


def make_player(environment: Any, **sections: Any) -> Player:
    return Player(environment, structure(TrainConfig, sections, where="test"))


def read_prompts(player: Player, policy: Policy, rows: Any) -> list[Prompt]:
    pipeline = player.pipeline(PROMPTS)
    return pipeline(rows, policy.tokenizer, player.config.data, max_length=policy.max_length)
