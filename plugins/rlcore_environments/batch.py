"""Episodes that are over as one batch of trajectories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from rlcore.protocols import Policy
from rlcore.types import Episodes, Trajectories
from rlcore_environments.episode import DONE, TOKENS, TOOLS, Episode


def to_batch(
    policy: Policy,
    episodes: Sequence[Episode],
    *,
    columns: Sequence[str] = (),
    counted: Sequence[str] = (),
    tools: Sequence[Any] = (),
    refills: bool = False,
    records_tokens: bool = False,
) -> Episodes:
    """Return the trajectories of B episodes on the policy's device, without what follows the last chosen token.

    Args:
        policy: the policy.
        episodes: B episodes that are over.
        columns: names of numbers of tokens that the batch has even if no episode has them.
        counted: metrics that are 0 in an episode without them, unless it failed.
        tools: JSON schemas of the tools that the policy may call, so that calls are counted.
        refills: whether failed episodes are replaced, so that replacements are counted.
        records_tokens: whether transcripts have token ids.
    """
    pad = policy.tokenizer.pad_token_id
    lengths = [_length(episode) for episode in episodes]
    tokens = [episode.tokens[:length] for episode, length in zip(episodes, lengths, strict=True)]
    chosen = [episode.chosen[:length] for episode, length in zip(episodes, lengths, strict=True)]
    batch = Trajectories.stack(
        tokens, chosen, ended=[episode.end == DONE for episode in episodes], pad_id=pad if isinstance(pad, int) else 0
    )
    names = dict.fromkeys([*columns, *(name for episode in episodes for name in episode.columns)])
    rows = {name: [episode.columns.get(name, []) for episode in episodes] for name in names}
    rows["rewards"] = [episode.rewards for episode in episodes]
    padded = {name: _padded(values, lengths, batch.tokens.shape[1]) for name, values in rows.items()}
    batch = batch.with_columns(**padded).to(policy.device)
    names = dict.fromkeys([*counted, *(name for episode in episodes for name in episode.counted)])
    metrics = [_numbers(episode, names, has_tools=bool(tools)) for episode in episodes]
    if refills:
        metrics = [each | {"episode/refilled": float(e.refilled)} for each, e in zip(metrics, episodes, strict=True)]
    keys = dict.fromkeys(key for each in metrics for key in each)
    return Episodes(
        batch.tokens, batch.mask, batch.action_mask, batch.ended, batch.columns,
        outputs=[episode.opening_text + episode.output for episode in episodes],
        arguments=_arguments(episodes, _about(tools, records_tokens=records_tokens)),
        numbers=Numbers({key: [each.get(key) for each in metrics] for key in keys}),
        failures=[episode.failure for episode in episodes],
    )  # fmt: skip


class Numbers(dict[str, list[float | None]]):
    """The metrics of a batch; those that count 0 where they are missing are added before means are taken."""

    def add(self, names: Iterable[str], failures: Sequence[str]) -> None:
        """Add metrics that no episode of the batch has; `failures` are those of the batch."""
        for name in names:
            self.setdefault(name, [None if failure else 0.0 for failure in failures])


def _numbers(episode: Episode, counted: Iterable[str], *, has_tools: bool) -> dict[str, float | None]:
    """Return the metrics of an episode, with 0 for what did not happen in it; of a failed one its end alone counts."""
    known = episode.counted
    named = {name: None if episode.failure else known.get(name, 0.0) for name in counted}
    calls = float(sum(len(turn.tool_calls) for turn in episode.turns))
    return episode.numbers | ({"episode/tool_calls": calls} if has_tools else {}) | named


def _arguments(episodes: Sequence[Episode], about: Callable[[Episode], dict[str, Any]]) -> dict[str, list[Any]]:
    asked = [_plain(e.prompt.messages or [{"role": "user", "content": e.prompt.text}]) for e in episodes]
    said = [_plain(episode.messages) for episode in episodes]
    return {
        "messages": [[*before, *after] for before, after in zip(asked, said, strict=True)],
        "prompt_messages": asked,
        "turns": [[turn.text for turn in episode.turns] for episode in episodes],
        "transcript": [transcript_of(episode, about(episode)) for episode in episodes],
        "info": [{**episode.values, **episode.info, "end": episode.end} for episode in episodes],
        "environment_rewards": [
            [reward for reward, is_chosen in zip(episode.rewards, episode.chosen, strict=True) if is_chosen]
            for episode in episodes
        ],
    }


def _plain(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages as reward functions receive them."""
    names = ("role", "content", "name", "tool_calls", "tool_call_id")
    return [{name: value for name, value in each.items() if name in names} for each in messages]


def _about(tools: Sequence[Any], *, records_tokens: bool) -> Callable[[Episode], dict[str, Any]]:
    """Return what tells the things about an episode that the first message of its transcript has.

    They are the schemas of the tools as JSON, since the template may render them, and the token ids, if asked for.
    """
    schemas = {TOOLS: json.dumps(list(tools), default=str)} if tools else {}
    return lambda episode: schemas | ({TOKENS: episode.segments} if records_tokens else {})


def transcript_of(episode: Episode, about: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return who said what after the prompt that was read, with the reward of each turn, and why it failed.

    Args:
        episode: the episode.
        about: further values of the first message.
    """
    rows = [dict(each) for each in (*episode.opening, *episode.messages)]
    if rows:
        rows[0].update(about or {})
    return [*rows, {"role": "failure", "content": episode.failure}] if episode.failure else rows


def _length(episode: Episode) -> int:
    if True not in episode.chosen:
        return len(episode.prompt.tokens)
    return len(episode.chosen) - episode.chosen[::-1].index(True)


def _padded(rows: Sequence[Sequence[float]], lengths: Sequence[int], width: int) -> torch.Tensor:
    found = torch.zeros(len(rows), width)
    for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        kept = row[:length]
        found[i, : len(kept)] = torch.tensor(kept, dtype=torch.float32)
    return found
