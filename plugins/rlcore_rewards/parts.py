"""Parts of outputs: what follows a marker, blocks of code, words and other units."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from rlcore.errors import RewardError

Unit = Literal["tokens", "characters", "words"]
FENCE = re.compile(r"^ *```[^\n`]*\n(.*?)^ *```[^\S\n]*$", re.DOTALL | re.MULTILINE)


def after(text: str, marker: str) -> str:
    """Return what follows the last occurrence of a marker; nothing without it, and the whole text for no marker."""
    return text.rpartition(marker)[2] if marker and marker in text else "" if marker else text


def last_block(text: str) -> str | None:
    """Return what stands in the last block between lines of three backticks; None if there is no such block."""
    blocks = FENCE.findall(text)
    return blocks[-1] if blocks else None


def units(
    outputs: Sequence[str], output_tokens: Sequence[Sequence[int]] | None, unit: Unit, reward: str
) -> list[Sequence[object]]:
    """Return the units of each output: its sampled tokens, characters or words.

    Raises:
        RewardError: tokens are needed, and the outputs have none.
    """
    if unit == "characters":
        return list(outputs)
    if unit == "words":
        return [output.split() for output in outputs]
    if output_tokens is None:
        raise RewardError(f"{reward}.unit = 'tokens': these outputs come without tokens; count characters or words")
    return list(output_tokens)
