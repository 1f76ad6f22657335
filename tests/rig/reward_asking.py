"""Three samples, reward functions for them, and the expected rewards."""

from __future__ import annotations

import asyncio

from rlcore.rewards.chosen_rewards import choose_rewards
from rlcore.rewards.combine import Rewards
from rlcore.types import Prompt

PROMPTS = [Prompt("a", (0,), {"label": 1}), Prompt("b", (1,), {"label": 2}), Prompt("c", (2,), {"label": None})]
OUTPUTS = ["x", "yy", ""]
LENGTHS = [2, 3, 1]


def ask(reward_fn, *, prompts=PROMPTS, outputs=OUTPUTS, lengths=LENGTHS, where="step 3", timeout_s=None):
    tokens = [list(range(length)) for length in lengths]
    rewards = Rewards.load(choose_rewards(reward_fn), timeout_s=timeout_s)
    return rewards(prompts, outputs, tokenizer="the tokenizer", output_tokens=tokens, where=where)


ARGUMENTS = ("messages", "output_tokens", "outputs", "prompts", "samples", "tokenizer")


def by_output(samples, prompts, outputs):
    assert samples == [p + o for p, o in zip(prompts, outputs, strict=True)]
    return [len(output) for output in outputs]


async def by_label(label, **rest):
    await asyncio.sleep(0)
    assert sorted(rest) == [*ARGUMENTS]
    return [value or 0 for value in label]
