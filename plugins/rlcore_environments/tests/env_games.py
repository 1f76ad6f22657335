"""Environments and tokenizers of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlcore.config import structure
from rlcore.protocols import Policy, Step, Turn
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore.types import Prompt, Trajectories
from rlcore_environments.play import turn_seed
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


class Scripted:
    """A sampler of turns that returns given texts, each ended by EOS: those of an episode in their order.

    Args:
        script: the texts of each episode, by its first prompt's row in the batch.
    """

    exact_logprobs = False

    def __init__(self, *script: Sequence[str]) -> None:
        self.script, self.calls = script, list[list[Prompt]]()
        self._first: list[tuple[int, ...]] = []

    def __call__(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: Any, *, row_seeds: Any, generator: Any = None
    ) -> Trajectories:
        self.calls.append(list(prompts))
        tokenizer: Any = policy.tokenizer
        rows, masks = [], []
        for prompt, seed in zip(prompts, row_seeds, strict=True):
            row, turn = self._place(int(seed))
            ids = tokenizer(self.script[row][turn], add_special_tokens=False)["input_ids"]
            ids = [*ids, tokenizer.eos_token_id][: sampling.max_new_tokens]
            rows.append([*prompt.tokens, *ids])
            masks.append([False] * len(prompt.tokens) + [True] * len(ids))
        ended = [row[-1] == tokenizer.eos_token_id for row in rows]
        batch = Trajectories.stack(rows, masks, ended=ended, pad_id=tokenizer.pad_token_id)
        return batch.with_columns(logprobs=-1.0 * batch.action_mask)

    def _place(self, seed: int) -> tuple[int, int]:
        """Return the episode and the turn to which a seed belongs; episode k has the seed k."""
        return next(
            (row, turn) for row in range(len(self.script)) for turn in range(len(self.script[row]))
            if turn_seed(row, turn) == seed
        )  # fmt: skip


def play(environment: Any, *script: Sequence[str], chat: bool = True, gen: Any = None, **episodes: Any) -> Any:
    """Play one scripted episode for each list of turns; prompts are "a", "b" and so on."""
    policy, player = make_policy(chat=chat), make_player(environment, data={"episodes": episodes})
    prompts = read_prompts(player, policy, [chr(97 + i) for i in range(len(script))])
    sampler: Any = player.sampler(Scripted(*script))  # type: ignore[arg-type]  # it needs no generator
    return sampler(policy, prompts, gen or SamplingConfig(max_new_tokens=8), row_seeds=range(len(script)))
