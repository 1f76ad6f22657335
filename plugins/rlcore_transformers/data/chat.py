"""Conversations (lists of {role, content}) rendered with the tokenizer's chat template."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import describe_error
from rlcore.config.plain import from_json
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import is_conversation, without_none  # noqa: F401  one by its old place

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

Conversation = Sequence[Mapping[str, Any]]
SYSTEM_ROLES = ("system", "developer")
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool", "function", "ipython")
SPEAKERS: Mapping[str, str] = MappingProxyType(
    {
        "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
        "bot": "assistant", "model": "assistant", "function_call": "assistant", "system": "system", "tool": "tool",
        "observation": "tool", "function_response": "tool",
    }
)  # fmt: skip
"""Roles of the speakers in conversations of ShareGPT."""
NOTHING: Mapping[str, Any] = MappingProxyType({})
_PYTHON = ("['", "{'", "[{'")
"""How Python begins a list of texts, a mapping, or a list of mappings; JSON begins them otherwise."""


@attrs.frozen(eq=False)
class Chat:
    """A conversation to render.

    Attributes:
        where: the row, for errors.
        messages: the conversation.
        first: index of the first message whose assistant turns are chosen.
        template: further variables of the chat template, such as `tools`.
        system_prompt: the system prompt, if `data.system_prompt` put it in front.
    """

    where: str
    messages: Conversation
    first: int = 0
    template: Mapping[str, Any] = NOTHING
    system_prompt: str = ""


def make_chat(
    where: str, messages: Conversation, data: DataConfig, *, first: int = 0, template: Mapping[str, Any] = NOTHING
) -> Chat:
    """Return a conversation with the options of the section `data`: its system prompt and its template's variables.

    `data.system_prompt` is put in front if no message has the role `system` or `developer`; the variables of a row,
    `template`, take precedence over `data.chat_template_options`.

    Raises:
        DataError: a message is empty, or a variable of the template has another form.
    """
    for i, message in enumerate(messages):
        refuse_empty_message(message, f"{where}, message {i}")
    options = template_variables({"chat_template_kwargs": data.chat_template_options}, "data.chat_template_options")
    system = data.system_prompt
    if not system or any(message["role"] in SYSTEM_ROLES for message in messages):
        return Chat(where, messages, first, {**options, **template})
    messages = [{"role": "system", "content": system}, *messages]
    return Chat(where, messages, first and first + 1, {**options, **template}, system)


def refuse_empty_message(message: Mapping[str, Any], where: str) -> None:
    """Raise the error of a message that has a role and nothing else.

    Raises:
        DataError: its content is null or missing, and it has no other key with a value, such as `tool_calls`.
    """
    if all(key in ("role", "name") or value is None for key, value in message.items()):
        state = "is null" if "content" in message else "is missing"
        raise DataError(
            f"{where} (role {shorten(message['role'])}): 'content' {state}, and the message has nothing else; write a "
            "text, or remove the message"
        )


def check_roles(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Check that no message has a misspelt role, or another name of the assistant: templates render any of them.

    Raises:
        DataError: a role is like a known one, and the chat template does not name it.
    """
    for i, message in enumerate(chat.messages):
        role = str(message["role"])
        if role in ROLES:
            continue
        near = SPEAKERS.get(role) or next(iter(difflib.get_close_matches(role.lower(), ROLES, 1, cutoff=0.75)), None)
        is_named = re.search(rf"""["']{re.escape(role)}["']""", template_of(tokenizer, chat.where))
        if near == "assistant" or (near and not is_named):
            raise DataError(
                f"{chat.where}: message {i - bool(chat.system_prompt)}: 'role' is {shorten(role)}; did you mean "
                f"{near!r}? Known roles are {', '.join(ROLES)}, and those that the chat template names"
            )


def template_variables(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the variables of the chat template that a row sets: `tools`, also as JSON, and `chat_template_kwargs`.

    Raises:
        DataError: one has another form.
    """
    further = row.get("chat_template_kwargs")
    if not isinstance(further, Mapping | None):
        raise DataError(f"{where}: 'chat_template_kwargs' is {shorten(further)}; it must be a mapping")
    variables = without_none(further or {})
    tools = row.get("tools") or variables.pop("tools", None)
    if isinstance(tools, str):
        try:
            tools = from_json(tools)
        except ValueError as error:
            raise DataError(f"{where}: 'tools' is {shorten(tools)}, which is no JSON ({error})") from error
    if not isinstance(tools, list | tuple | None):
        raise DataError(f"{where}: 'tools' is {shorten(tools)}; it must be a list of JSON schemas, or one as JSON")
    return {**variables, **({"tools": list(tools)} if tools else {})}


def render_prompt(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Render a conversation as a prompt: the header of a new assistant turn follows, unless the last turn is one.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error.
    """
    check_roles(tokenizer, chat)
    if chat.messages[-1]["role"] == "assistant":
        return _checked(chat, apply_template(tokenizer, chat, continue_final_message=True))
    return _checked(chat, apply_template(tokenizer, chat, add_generation_prompt=True))


def render_conversation(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Render a whole conversation, without the header of a further turn; errors are those of `render_prompt`."""
    return _checked(chat, apply_template(tokenizer, chat))


def _checked(chat: Chat, text: str) -> str:
    if chat.system_prompt.strip() not in text:
        raise DataError(
            f"{chat.where}: the chat template does not render data.system_prompt; it has no system role, so write the "
            "instructions into the first message of the user"
        )
    return text


def apply_template(tokenizer: PreTrainedTokenizerBase, chat: Chat, *, tokenize: bool = False, **how: Any) -> Any:
    """Return what the tokenizer's chat template makes of a conversation; `how` are options of `apply_chat_template`.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error or writes a list as Python does.
    """
    template_of(tokenizer, chat.where)
    messages = [without_none(message) for message in chat.messages]
    try:
        found = tokenizer.apply_chat_template(messages, tokenize=tokenize, **chat.template, **how)
    except Exception as error:  # a template is a program, and the tokenizer may refuse what it renders
        raise DataError(
            f"{chat.where}: the chat template raised {describe_error(error)}. "
            f"Its messages have the roles {[message['role'] for message in messages]}"
            + ("; the first is data.system_prompt" if chat.system_prompt else "")
        ) from error
    for i, message in enumerate(messages if isinstance(found, str) else ()):
        text = str(message.get("content"))
        if text.startswith(_PYTHON) and not isinstance(message["content"], str) and text in found:
            raise DataError(
                f"{chat.where}: message {i - bool(chat.system_prompt)} ({message['role']}): the chat template writes "
                f"its 'content' as Python does, {shorten(text)}, since it renders contents that are texts only; write "
                "the content as one text, or change the template (model.tokenizer.chat_template)"
            )
    return found


def template_of(tokenizer: PreTrainedTokenizerBase, where: str) -> str:
    """Return the tokenizer's chat template.

    Raises:
        DataError: the tokenizer has none.
    """
    if not tokenizer.chat_template:
        raise DataError(
            f"{where}: is a conversation, and the tokenizer has no chat template to render it: take an "
            "instruction-tuned model or its tokenizer (model.tokenizer), set model.tokenizer.chat_template to a "
            "template or its .jinja file, or pass plain strings"
        )
    return str(tokenizer.get_chat_template())
