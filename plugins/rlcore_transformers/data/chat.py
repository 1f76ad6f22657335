"""Conversations (lists of {role, content}) rendered with the tokenizer's chat template."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import describe_error
from rlcore.config.options import from_json
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import is_conversation  # noqa: F401  by its old place
from rlcore_transformers.data.messages import SPEAKERS, has_value, without_nulls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

Conversation = Sequence[Mapping[str, Any]]
SYSTEM_ROLES = ("system", "developer")
ROLES = (*SYSTEM_ROLES, "user", "assistant", "tool", "function", "ipython")
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
    where: str, messages: Conversation, data: DataConfig, *, first: int = 0, template: Mapping[str, object] = NOTHING
) -> Chat:
    """Return a conversation with the options of the section `data`: its system prompt and its template's variables.

    `data.system_prompt` is put in front if no message has the role `system` or `developer`; the variables of a row,
    `template`, take precedence over `data.chat_template_options`.

    Keys whose value is None are left out, in messages and in everything within them.

    Raises:
        DataError: a message is empty, or a variable of the template has another form.
    """
    for i, message in enumerate(messages):
        refuse_empty_message(message, f"{where}, message {i}")
    messages = _without_nulls(messages, where)
    options = template_variables({"chat_template_kwargs": data.chat_template_options}, "data.chat_template_options")
    system = data.system_prompt
    if not system or any(message["role"] in SYSTEM_ROLES for message in messages):
        return Chat(where, messages, first, {**options, **template})
    messages = [{"role": "system", "content": system}, *messages]
    return Chat(where, messages, first and first + 1, {**options, **template}, system)


def _without_nulls(value: object, where: str) -> Any:
    try:
        return without_nulls(value)
    except RecursionError:
        raise DataError(f"{where}: is nested too deep, or contains itself") from None


def refuse_empty_message(message: Mapping[str, object], where: str) -> None:
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


def template_variables(row: Mapping[str, object], where: str) -> dict[str, Any]:
    """Return the variables of the chat template that a row sets: `tools`, also as JSON, and `chat_template_kwargs`.

    Raises:
        DataError: one has another form.
    """
    further = row.get("chat_template_kwargs")
    if isinstance(further, str) and has_value(further):
        further = _from_json(further, where, "chat_template_kwargs")
    if not isinstance(further, Mapping | None) and has_value(further):
        raise DataError(f"{where}: 'chat_template_kwargs' is {shorten(further)}; it must be a mapping")
    variables = _without_nulls(further, where) if isinstance(further, Mapping) else {}
    tools = row.get("tools")
    tools = tools if has_value(tools) else variables.pop("tools", None)
    tools = _from_json(tools, where, "tools") if isinstance(tools, str) else tools
    if not isinstance(tools, list | tuple | None):
        raise DataError(f"{where}: 'tools' is {shorten(tools)}; it must be a list of JSON schemas, or one as JSON")
    tools = [_from_json(each, where, "tools") if isinstance(each, str) else each for each in tools or ()]
    return {**variables, **({"tools": _without_nulls(tools, where)} if tools else {})}


def _from_json(text: str, where: str, key: str) -> object:
    try:
        return from_json(text)
    except ValueError as error:
        raise DataError(f"{where}: '{key}' is {shorten(text)}, which is no JSON ({error})") from error


def render_prompt(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> str:
    """Render a conversation as a prompt: the header of a new assistant turn follows, unless the last turn is one.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error.
    """
    check_roles(tokenizer, chat)
    chat = fit_messages(tokenizer, chat)
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


def fit_messages(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Chat:
    """Return a conversation whose messages have the forms that the chat template renders.

    * Arguments of calls of tools are a mapping, or its JSON as a text, as in OpenAI's files. Both forms are rendered,
      up to the first call, and what the user wrote stays if the template renders it: a text as it is, and a mapping not
      as Python writes it.
    * A content of one part that is a text becomes the text where the template renders texts only. Several parts stay:
      what would stand between them is unknown.

    Raises:
        DataError: the template renders mappings only, and the arguments of a call are a text that is no JSON of one.
    """
    return _fit_calls(tokenizer, _fit_parts(tokenizer, chat))


def _fit_parts(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Chat:
    texts = {i: text for i, each in enumerate(chat.messages) if (text := _only_text(each.get("content"))) is not None}
    if not texts:
        return chat
    messages = [{**each, "content": texts[i]} if i in texts else each for i, each in enumerate(chat.messages)]
    end = next(iter(texts)) + 1
    if _is_rendered(tokenizer, attrs.evolve(chat, messages=chat.messages[:end])):
        return chat
    if not _is_rendered(tokenizer, attrs.evolve(chat, messages=messages[:end])):
        return chat  # the template renders neither, and says why
    return attrs.evolve(chat, messages=messages)


def _only_text(content: object) -> str | None:
    """Return the text of a content that is one part with a text and nothing else."""
    part = content[0] if isinstance(content, list | tuple) and len(content) == 1 else None
    if not isinstance(part, Mapping) or not set(part) <= {"type", "text"} or part.get("type", "text") != "text":
        return None
    return part["text"] if isinstance(part.get("text"), str) else None


def _is_rendered(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> bool:
    try:
        apply_template(tokenizer, chat)
    except DataError:
        return False
    return True


def _fit_calls(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> Chat:
    calls = [
        (i, _arguments_of(call)) for i, message in enumerate(chat.messages) for call in message.get("tool_calls") or ()
    ]
    kinds = {kind for _, given in calls for kind in (str, Mapping) if isinstance(given, kind)}
    wrong = {kind for kind in kinds if not _renders(tokenizer, chat, kind, calls)}
    if not wrong or (kinds == wrong == {str, Mapping}):
        return chat
    other = Mapping if str in wrong else str
    if other not in kinds and not _renders(tokenizer, chat, other, calls):
        return chat  # the template renders neither, and says why
    messages = [
        {**message, "tool_calls": [_with_form(call, other, f"{chat.where}: message {i}") for call in found]}
        if (found := message.get("tool_calls")) else message for i, message in enumerate(chat.messages)
    ]  # fmt: skip
    return attrs.evolve(chat, messages=messages)


def _arguments_of(call: Mapping[str, object]) -> object:
    function = call.get("function")
    return (function if isinstance(function, Mapping) else call).get("arguments")


def _renders(tokenizer: PreTrainedTokenizerBase, chat: Chat, form: type, calls: Sequence[tuple[int, object]]) -> bool:
    """Return whether the template renders the arguments of the first calls in a form, a text or a mapping."""
    end = next(
        (i for i, given in calls if isinstance(given, str | Mapping) and given not in ("", "{}", {})), calls[0][0]
    )
    try:
        messages = [
            {**each, "tool_calls": [_with_form(call, form, chat.where) for call in each["tool_calls"]]}
            if each.get("tool_calls") else each for each in chat.messages[: end + 1]
        ]  # fmt: skip
        found = str(apply_template(tokenizer, attrs.evolve(chat, messages=messages)))
    except DataError:
        return False
    given = [_arguments_of(call) for call in messages[end]["tool_calls"]]
    if form is str:
        texts = [each for each in given if isinstance(each, str)]
        return all(text.strip() in found and json.dumps(text, ensure_ascii=False) not in found for text in texts)
    written = [each for each in given if isinstance(each, Mapping)]
    return all(str(each) not in found or str(each) == json.dumps(each) for each in written)


def _with_form(call: Mapping[str, object], form: type, where: str) -> Mapping[str, object]:
    """Return a call of a tool whose arguments are a text or a mapping; others than both stay."""
    given = _arguments_of(call)
    if isinstance(given, form) or not isinstance(given, str | Mapping):
        return call
    if not isinstance(given, str):
        changed: object = json.dumps(given, ensure_ascii=False)
    else:
        try:
            changed = from_json(given) if given.strip() else {}
        except ValueError:
            changed = None
        if not isinstance(changed, Mapping):
            raise DataError(
                f"{where}: the 'arguments' of a call are {shorten(given)}, and the chat template renders mappings "
                "only; write a mapping, or its JSON"
            )
    function = call.get("function")
    if isinstance(function, Mapping):
        return {**call, "function": {**function, "arguments": changed}}
    return {**call, "arguments": changed}


def apply_template(tokenizer: PreTrainedTokenizerBase, chat: Chat, *, tokenize: bool = False, **how: Any) -> Any:
    """Return what the tokenizer's chat template makes of a conversation; `how` are options of `apply_chat_template`.

    Raises:
        DataError: the tokenizer has no chat template, or the template raises an error or writes a list as Python does.
    """
    template_of(tokenizer, chat.where)
    messages = [dict(message) for message in chat.messages]
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
