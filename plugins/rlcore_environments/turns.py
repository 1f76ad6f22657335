"""Turns of the policy, read from what the sampler returned: their texts, calls of tools, tokens and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from rlcore.data.text import render_outputs
from rlcore.protocols import Policy, Turn
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_environments.episode import Episode
from rlcore_environments.tool_calls import read_calls

BEFORE = 16
"""Tokens before a turn that are decoded with it, since some tokenizers decode a fragment in another way."""


@attrs.frozen
class Sampled:
    """A sampled turn.

    Attributes:
        turn: what the environment receives.
        tokens: its K tokens.
        columns: K numbers by name, such as `logprobs`.
    """

    turn: Turn
    tokens: Sequence[int]
    columns: Mapping[str, Sequence[float]]


def read_turns(
    policy: Policy,
    episodes: Sequence[Episode],
    part: Trajectories,
    sampling: SamplingConfig,
    tools: Sequence[Any],
) -> Iterator[Sampled]:
    """Yield the next turn of each of B episodes, which have not yet received it.

    Args:
        policy: the policy, whose tokenizer decodes the turns.
        episodes: B episodes.
        part: B trajectories, which continue them.
        sampling: the options with which they were sampled.
        tools: JSON schemas of the tools that the policy may call.
    """
    before = [Prompt("", tuple(episode.tokens[-BEFORE:])) for episode in episodes]
    texts = render_outputs(policy.tokenizer, part, before, sampling.stop_sequences)
    mask = part.action_mask
    columns = {
        name: array for name, array in part.columns.items() if array.shape[:2] == mask.shape and array.dim() == 2
    }
    counts, ended = part.num_actions.tolist(), part.ended.tolist()
    chosen = {name: iter(array[mask].tolist()) for name, array in columns.items()}
    for episode, text, tokens, count, is_over in zip(episodes, texts, part.action_tokens, counts, ended, strict=True):
        stops = sampling.stop_sequences
        calls = read_calls(policy.tokenizer, tokens, episode.tokens, stops=stops, tools=tools) if tools else ()
        turn = Turn(text, len(episode.turns), truncated=not is_over, tool_calls=calls)
        yield Sampled(turn, tokens, {name: [next(values) for _ in range(count)] for name, values in chosen.items()})
