"""Conversations, lists of {role, content}, as the tokenizer's chat template writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rlcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Conversation = Sequence[Mapping[str, Any]]


def is_conversation(value: object) -> bool:
    """Tell whether `value` is a non-empty list of messages with a role."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def render_prompt(tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str) -> str:
    """Write a conversation up to where the assistant goes on: a new turn, or its last one if that is its own.

    Raises:
        DataError: the tokenizer has no chat template, or the template refuses the conversation.
    """
    if messages[-1]["role"] == "assistant":
        return _render(tokenizer, messages, where, continue_final_message=True)
    return _render(tokenizer, messages, where, add_generation_prompt=True)


def split_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, *, first: int = 0
) -> list[tuple[str, bool]]:
    """Cut the rendering of a conversation into pieces, True for those the assistant wrote.

    The piece of an assistant's turn is what its rendering adds to that of the messages before it, those with the header
    a generation begins behind. So a turn begins in training where it begins in sampling.

    Args:
        tokenizer: whose template writes it.
        messages: the whole conversation.
        where: the row, for messages.
        first: index of the first message whose assistant turns count as chosen.

    Raises:
        DataError: there is no such turn, or the template writes earlier messages differently once later ones follow.
    """
    whole = _render(tokenizer, messages, where)
    pieces: list[tuple[str, bool]] = []
    done = 0
    for i in _chosen_turns(messages, first, where):
        before = _render(tokenizer, messages[:i], where, add_generation_prompt=True) if i else ""
        after = _render(tokenizer, messages[: i + 1], where)
        if not (whole.startswith(after) and after.startswith(before)):
            raise DataError(
                f"{where}: the chat template writes the turns up to message {i} differently once others follow, so the "
                "assistant's tokens cannot be told from the rest. Mark them in the template with {% generation %}, or "
                "give one [prompt, output] pair for each turn"
            )
        pieces += [(whole[done : len(before)], False), (whole[len(before) : len(after)], True)]
        done = len(after)
    pieces.append((whole[done:], False))
    return [piece for piece in pieces if piece[0]]


def marked_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, *, first: int = 0
) -> tuple[list[int], list[bool]] | None:
    """Tokenise a conversation whose template marks the assistant's text with {% generation %}; None if it does not.

    Returns:
        token ids and whether the assistant chose each.
    """
    template = _template(tokenizer, where)
    if not tokenizer.is_fast or not re.search(r"\{%-?\s*generation\s*-?%\}", template):
        return None
    _chosen_turns(messages, first, where)
    encoded = _apply(tokenizer, messages, where, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
    mask: list[bool] = []
    skip = sum(message["role"] == "assistant" for message in messages[:first])
    for chosen, run in groupby(bool(mark) for mark in encoded["assistant_masks"]):
        mask += [chosen and skip <= 0 for _ in run]
        skip -= chosen
    return list(encoded["input_ids"]), mask


def _chosen_turns(messages: Conversation, first: int, where: str) -> list[int]:
    turns = [i for i, message in enumerate(messages) if i >= first and message["role"] == "assistant"]
    if not turns:
        roles = ", ".join(repr(message["role"]) for message in messages)
        raise DataError(f"{where}: no message has the role 'assistant' (roles: {roles}), so there is nothing to learn")
    return turns


def _render(tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, **how: Any) -> str:
    return str(_apply(tokenizer, messages, where, tokenize=False, **how))


def _apply(tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, **how: Any) -> Any:
    _template(tokenizer, where)
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template([dict(message) for message in messages], **how)
    except (TemplateError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{where}: the chat template refuses the conversation, {type(error).__name__}: {error}. "
            f"Its messages have the roles {[message['role'] for message in messages]}"
        ) from error


def _template(tokenizer: PreTrainedTokenizerBase, where: str) -> str:
    if not tokenizer.chat_template:
        raise DataError(
            f"{where}: is a conversation, and the tokenizer has no chat template to write it with; "
            "set tokenizer.chat_template, use an instruction-tuned model's tokenizer, or give plain strings"
        )
    return str(tokenizer.get_chat_template())
