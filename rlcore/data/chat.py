"""Conversations (lists of {role, content}) rendered with the tokenizer's chat template."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Conversation = Sequence[Mapping[str, Any]]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def is_conversation(value: object) -> bool:
    """Return whether `value` is a non-empty list of messages with a role."""
    return (
        isinstance(value, (list, tuple))
        and bool(value)
        and all(isinstance(message, Mapping) and "role" in message for message in value)
    )


def render_prompt(
    tokenizer: PreTrainedTokenizerBase,
    messages: Conversation,
    where: str,
    *,
    template: Mapping[str, Any] = NOTHING,
) -> str:
    """Render a conversation as a prompt: the header of a new assistant turn follows, unless the last turn is one.

    Args:
        tokenizer: the tokenizer with the chat template.
        messages: the conversation.
        where: the row, for errors.
        template: further variables of the chat template, such as `tools`.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error.
    """
    if messages[-1]["role"] == "assistant":
        return _render(tokenizer, messages, where, continue_final_message=True, **template)
    return _render(tokenizer, messages, where, add_generation_prompt=True, **template)


def render_conversation(
    tokenizer: PreTrainedTokenizerBase,
    messages: Conversation,
    where: str,
    *,
    template: Mapping[str, Any] = NOTHING,
) -> str:
    """Render a whole conversation, without the header of a further turn; the arguments are those of `render_prompt`."""
    return _render(tokenizer, messages, where, **template)


def split_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, *, first: int = 0
) -> list[tuple[str, bool]]:
    """Split the rendering of a conversation into pieces, each with a flag that is True for an assistant turn.

    The piece of an assistant turn is the text that it adds to the rendering of the earlier messages and the header of a
    new assistant turn. A turn therefore begins at the same token in training and in sampling.

    Args:
        tokenizer: the tokenizer with the chat template.
        messages: the whole conversation.
        where: the row, for errors.
        first: index of the first message whose assistant turns count as chosen.

    Raises:
        DataError: there is no such turn, or the template renders earlier messages differently once later ones follow.
    """
    whole = _render(tokenizer, messages, where)
    pieces: list[tuple[str, bool]] = []
    done = 0
    for i in _chosen_turns(messages, first, where):
        before = _render(tokenizer, messages[:i], where, add_generation_prompt=True) if i else ""
        after = _render(tokenizer, messages[: i + 1], where)
        if not (whole.startswith(after) and after.startswith(before)):
            raise DataError(
                f"{where}: the chat template renders the turns up to message {i} differently once others follow, so "
                "the assistant's tokens cannot be located. Mark them in the template with {% generation %}, or "
                "give one [prompt, output] pair for each turn"
            )
        pieces += [(whole[done : len(before)], False), (whole[len(before) : len(after)], True)]
        done = len(after)
    pieces.append((whole[done:], False))
    return [piece for piece in pieces if piece[0]]


def marked_turns(
    tokenizer: PreTrainedTokenizerBase, messages: Conversation, where: str, *, first: int = 0
) -> tuple[list[int], list[bool]] | None:
    """Tokenise a conversation whose template marks the assistant's text with {% generation %}.

    Returns:
        token ids, and for each whether it belongs to an assistant turn; None if the template has no such marks.
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
    try:
        return tokenizer.apply_chat_template([without_none(message) for message in messages], **how)
    except Exception as error:  # a template is a program, and the tokenizer may refuse what it renders
        raise DataError(
            f"{where}: the chat template raised {describe_error(error)}. "
            f"Its messages have the roles {[message['role'] for message in messages]}"
        ) from error


def without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the keys that `datasets` fills with None where other rows have them."""
    return {key: value for key, value in message.items() if value is not None}


def _template(tokenizer: PreTrainedTokenizerBase, where: str) -> str:
    if not tokenizer.chat_template:
        raise DataError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it; "
            "set tokenizer.chat_template, use an instruction-tuned model's tokenizer, or pass plain strings"
        )
    return str(tokenizer.get_chat_template())
