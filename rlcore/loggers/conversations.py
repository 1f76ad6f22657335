"""Conversations in rows of completions, as text: each message with its role, in place of the rendered template."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def display_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of completions for people: the prompt of a conversation is its messages, not the rendered template.

    Args:
        row: a row of completions.jsonl or rollouts.jsonl, or one that `Logger.completions` receives.

    Returns:
        The row without `messages` and `transcript`. If it had messages, its `prompt` has a line `role: text` for each
        of them; if it had a transcript, so has its `output`, with the reward of each turn.
    """
    shown = {key: value for key, value in row.items() if key not in ("messages", "transcript")}
    if turns := turns_of(row.get("messages")):
        shown["prompt"] = _lines(turns)
    if row.get("transcript"):
        shown["output"] = _transcript(row["transcript"])
    return shown


def _transcript(transcript: Any) -> str:
    """Return who said what in an episode, one line for each message, with the reward of each turn."""
    rewards = [each.get("reward") for each in transcript if isinstance(each, Mapping)]
    turns = zip(turns_of(transcript), rewards, strict=True)
    return _lines([(role if reward is None else f"{role} ({reward:+g})", text) for (role, text), reward in turns])


def _lines(turns: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{role}: {text}" for role, text in turns)


def turns_of(messages: Any) -> list[tuple[str, str]]:
    """Return the role and the text of each message; none if `messages` is no list of mappings."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return []
    return [(str(each.get("role", "")), _text(each)) for each in messages if isinstance(each, Mapping)]


def _text(message: Mapping[str, Any]) -> str:
    """Return the content of a message, and its calls of tools as JSON."""
    calls = message.get("tool_calls")
    return "\n".join(filter(None, [_content(message.get("content")), json.dumps(calls, default=str) if calls else ""]))


def _content(content: Any) -> str:
    """Return the content of a message as text: that of its parts, and what other parts are, such as [image]."""
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, Sequence):
        return "\n".join(
            str(part.get("text") or f"[{part.get('type', 'part')}]") if isinstance(part, Mapping) else str(part)
            for part in content
        )
    return str(content)
