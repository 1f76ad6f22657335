"""Functions of the tests; they are imported where openenv is, without rlcore."""

from __future__ import annotations

from typing import Any


def act(text: str) -> dict[str, Any]:
    return {"message": text.rpartition(":")[2].strip()}


def observe(fields: dict[str, Any]) -> str:
    return f"{fields['text']} ({fields['guesses']})"
