"""Messages of a conversation: mappings with `role` and `content`, as chat templates read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_conversation(value: object) -> bool:
    """Return whether `value` is a non-empty list of messages with a role."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the keys that `datasets` fills with None where other rows have them.

    The same holds for the parts of its content and for its tool calls, but not for their arguments.
    """
    kept = {key: value for key, value in message.items() if value is not None}
    for key in ("content", "tool_calls"):
        if isinstance(kept.get(key), (list, tuple)):
            kept[key] = [without_none(part) if isinstance(part, Mapping) else part for part in kept[key]]
    if isinstance(kept.get("function"), Mapping):
        kept["function"] = without_none(kept["function"])
    return kept
