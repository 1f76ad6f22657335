"""Conversations (lists of {role, content}) rendered with the tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

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


@attrs.frozen(eq=False)
class Chat:
    """A conversation to render.

    Attributes:
        where: the row, for errors.
        messages: the conversation.
        first: index of the first message whose assistant turns are chosen.
        template: further variables of the chat template, such as `tools`.
    """

    where: str
    messages: Conversation
    first: int = 0
    template: Mapping[str, Any] = NOTHING


def render_prompt(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Render a conversation as a prompt: the header of a new assistant turn follows, unless the last turn is one.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error.
    """
    if chat.messages[-1]["role"] == "assistant":
        return str(apply_template(tokenizer, chat, continue_final_message=True))
    return str(apply_template(tokenizer, chat, add_generation_prompt=True))


def render_conversation(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Render a whole conversation, without the header of a further turn; errors are those of `render_prompt`."""
    return str(apply_template(tokenizer, chat))


def apply_template(tokenizer: PreTrainedTokenizerBase, chat: Chat, *, tokenize: bool = False, **how: Any) -> Any:
    """Return what the tokenizer's chat template makes of a conversation; `how` are options of `apply_chat_template`.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error.
    """
    template_of(tokenizer, chat.where)
    messages = [without_none(message) for message in chat.messages]
    try:
        return tokenizer.apply_chat_template(messages, tokenize=tokenize, **chat.template, **how)
    except Exception as error:  # a template is a program, and the tokenizer may refuse what it renders
        raise DataError(
            f"{chat.where}: the chat template raised {describe_error(error)}. "
            f"Its messages have the roles {[message['role'] for message in messages]}"
        ) from error


def without_none(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without the keys that `datasets` fills with None where other rows have them."""
    return {key: value for key, value in message.items() if value is not None}


def template_of(tokenizer: PreTrainedTokenizerBase, where: str) -> str:
    """Return the tokenizer's chat template.

    Raises:
        DataError: the tokenizer has none.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it; "
            "set tokenizer.chat_template, use an instruction-tuned model's tokenizer, or pass plain strings"
        )
    return str(tokenizer.get_chat_template())
