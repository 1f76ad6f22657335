"""Parts of outputs: what follows a marker, blocks of code, words and other units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rlcore.errors import RewardError
from rlcore_rewards.columns import refuse_misfit

Unit = Literal["tokens", "characters", "words"]
OPENING, CLOSING = re.compile(r" *```[^`]*"), re.compile(r" *```\s*")
"""Lines that open and close a block."""


def after(text: str, marker: str) -> str:
    """Return what follows the last occurrence of a marker; nothing without it, and the whole text for no marker."""
    return text.rpartition(marker)[2] if marker and marker in text else "" if marker else text


def last_block(text: str) -> str | None:
    """Return what stands in the last block between lines of three backticks; None if there is no such block."""
    block: str | None = None
    begin: int | None = None
    at = 0
    for line in text.split("\n"):  # one pass: a search for pairs takes quadratic time if blocks are not closed
        if begin is None:
            begin = at + len(line) + 1 if OPENING.fullmatch(line) else None
        elif CLOSING.fullmatch(line):
            block, begin = text[begin:at], None
        at += len(line) + 1
    return block


def units(
    outputs: Sequence[str], output_tokens: Sequence[Sequence[int]] | None, unit: Unit, reward: str
) -> list[Sequence[object]]:
    """Return the units of each output: its sampled tokens, characters or words.

    Raises:
        RewardError: tokens are needed, and the outputs have none; or an output is no text.
    """
    refuse_misfit(outputs)
    if unit == "characters":
        return list(outputs)
    if unit == "words":
        return [output.split() for output in outputs]
    if output_tokens is None:
        raise RewardError(f"{reward}.unit = 'tokens': these outputs come without tokens; count characters or words")
    return list(output_tokens)
