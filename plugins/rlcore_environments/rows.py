"""Rows of a run with an environment: their seeds, what the environment receives, and prompts with first messages."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

from rlcore.errors import ConfigError, DataError
from rlcore.safe_text import shorten
from rlcore.settings import DataConfig
from rlcore.types import is_conversation
from rlcore_environments.dialogue import Dialogue
from rlcore_environments.options import EpisodeOptions
from rlcore_transformers.data.limits import truncated_prompt

SEED = "seed"
"""Column of a row with the seed of its environment; rows without it receive one."""


def own_columns(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    """Return what an environment receives of a row."""
    return {name: value for name, value in row.items() if name not in (SEED, column)}


def describe_silence(where: str, name: str, column: str) -> str:
    """Return what is wrong with an environment and a row that both say nothing."""
    return (
        f"{where}: environment '{name}': reset returned no messages, and the row has no '{column}', so the policy has "
        "nothing to answer"
    )


def any_token(tokenizer: Any) -> int:
    """Return a token that stands for a prompt which is not known yet."""
    found = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, 0)
    return int(next(token for token in found if token is not None))


def fields_of(row: Any, column: str, seed: int, where: str) -> dict[str, Any]:
    """Return a row as a mapping, with the seed of its environment.

    Raises:
        DataError: its own seed is no integer.
    """
    fields = {str(key): value for key, value in row.items()} if isinstance(row, Mapping) else {column: row}
    own = fields.get(SEED)
    if own is not None and (isinstance(own, bool) or not isinstance(own, numbers.Integral)):
        raise DataError(
            f"{where}: the column '{SEED}' is {shorten(own)} ({type(own).__name__}), and it is the seed of the row's "
            "environment, an integer; correct it, or rename the column if it is something else"
        )
    return {**fields, SEED: seed if own is None else int(own)}


def fresh_rows(rows: Sequence[Any], options: EpisodeOptions) -> list[bool]:
    """Return for each row to train on whether its environment has another seed in each step.

    Raises:
        ConfigError: `data.episodes.seeds` is `fresh`, and every row states its own seed.
    """
    if options.seeds == "fixed":
        return [False] * len(rows)
    found = [not isinstance(row, Mapping) or row.get(SEED) is None for row in rows]
    if rows and not any(found):
        raise ConfigError(
            f"data.episodes.seeds = 'fresh': has no effect, since every row to train on has a '{SEED}' of its own, "
            "which it keeps; leave that column out of the rows, or leave this option out"
        )
    return found


def fitted(tokens: Sequence[int], dialogue: Dialogue, data: DataConfig, max_length: int, where: str) -> tuple[int, ...]:
    """Return the tokens of a prompt that were computed anew, within the same limits as those of the pipeline."""
    kept = truncated_prompt(list(tokens), dialogue.tokenizer, data, where)
    if max_length and len(kept) >= max_length:
        raise DataError(
            f"{where}: has {len(kept)} tokens, since the environment's message has the text of a control token, which "
            f"is read as text, and the model takes prompts of at most {max_length - 1}; shorten it, or set "
            f"data.max_prompt_tokens to at most {max_length - 1} to truncate prompts"
        )
    return tuple(kept)


def content_of(asked: Any, said: list[dict[str, Any]], dialogue: Dialogue, where: str) -> Any:
    """Return the prompt of a row followed by the environment's first messages: a conversation, or a text."""
    if dialogue.is_chat:
        before = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked or ())
        return [*before, *said]
    if is_conversation(asked):
        raise ConfigError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it "
            "(model.tokenizer.chat_template)"
        )
    return f"{asked or ''}{''.join(str(each['content']) for each in said)}"
