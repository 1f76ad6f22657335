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
        The row without `messages`; if it had any, its `prompt` has a line `role: text` for each message.
    """
    turns = turns_of(row.get("messages"))
    shown = {key: value for key, value in row.items() if key != "messages"}
    return shown | {"prompt": "\n".join(f"{role}: {text}" for role, text in turns)} if turns else shown


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
