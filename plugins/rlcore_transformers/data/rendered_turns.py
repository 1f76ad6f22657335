"""The assistant's turns in a conversation, each rendered as the last one: its prompt, and the text to train on.

Where a message ends in the rendering is found by rendering it again with a unique word in it. A template that marks the
assistant's text with {% generation %} states itself what to train on.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_transformers.data.chat import Chat, apply_template, render_conversation, template_of
from rlcore_transformers.data.messages import TRAIN_KEYS, is_trained
from rlcore_transformers.data.tokens import count_common

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig
    from rlcore.types import Message

QUESTION = {"role": "user", "content": "?"}
TEXTS = ("content", "reasoning_content", "reasoning", "thinking")
"""Keys of a message whose values the assistant wrote; `tool_calls` is another one."""
_MARKED_TEMPLATE = re.compile(r"\{%-?\s*generation\s*-?%\}")
THOUGHT_OPTIONS = ("enable_thinking", "thinking")
"""Variables with which templates write thoughts, or empty ones, into prompts, or leave them out."""
_LONGEST_MARK = 64
"""Characters that the name of the next speaker's mark may have."""
_LONGEST_TAG = 64
"""Characters at the end of a prompt with which an answer may begin, such as <think>."""


@attrs.frozen
class RenderedTurn:
    """An assistant's turn as the last one of a conversation.

    Attributes:
        name: the row and the message, for errors.
        prompt: the text from which a policy is sampled for this turn.
        text: what follows the prompt.
        places: indices of characters in `text`: the end of the message's content or of the name of its last tool call,
            then the end of what follows it both when another turn follows and when none does. If the template marks the
            assistant's text, the beginning and end of each part that it marks.
        is_marked: whether the template marks the assistant's text.
        diverges: whether the template goes on in another way when another turn follows than when none does.
        following: the beginning of what the template writes next when another turn follows: the next speaker's mark.
    """

    name: str
    prompt: str
    text: str
    places: tuple[int, ...]
    is_marked: bool = False
    diverges: bool = False
    following: str = ""


def find_turns(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, data: DataConfig, turns: Sequence[int]
) -> list[RenderedTurn]:
    """Render turns of a conversation, which are messages of `trained_turns`, each as the last one.

    With `data.turns: each`, the content of a message takes the place that the template gives to contents if the
    template would drop part of it, such as its thinking.

    Raises:
        DataError: a turn is empty, the template drops text of one, or does not begin one with its prompt.
    """
    bos = str(tokenizer.bos_token or "") if data.add_bos is False else ""
    found = [_Message(tokenizer, chat, i, verbatim=data.turns == "each").turn() for i in turns]
    render_conversation(tokenizer, chat)  # a system prompt that is not rendered is an error
    return [attrs.evolve(turn, prompt=turn.prompt.removeprefix(bos)) for turn in found]


def trained_turns(chat: Chat) -> list[int]:
    """Return the indices of the messages that are trained on: the assistant's, but for those with a weight of 0.

    Raises:
        DataError: there is none, or a message has another weight than 0 and 1.
    """
    begin = bool(chat.system_prompt)
    turns = [
        i
        for i, message in enumerate(chat.messages)
        if i >= chat.first and is_trained(message, f"{chat.where}: message {i - begin} ({message['role']})")
    ]
    if turns:
        return turns
    if any(message["role"] == "assistant" for message in chat.messages[chat.first :]):
        raise DataError(
            f"{chat.where}: every message of the assistant has one of {', '.join(TRAIN_KEYS)} that is 0 or false, so "
            "there is nothing to learn; remove the row"
        )
    roles = ", ".join(repr(message["role"]) for message in chat.messages)
    raise DataError(f"{chat.where}: no message has the role 'assistant' (roles: {roles}), so there is nothing to learn")


class _Message:
    """A message of the assistant as the last one of its conversation.

    Args:
        tokenizer: the tokenizer.
        chat: the conversation.
        i: index of the message.
        verbatim: whether its content takes the place of contents if the template drops part of it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: Chat, i: int, *, verbatim: bool) -> None:
        self.tokenizer, self.chat, self.verbatim = tokenizer, chat, verbatim
        self.is_marked = tokenizer.is_fast and bool(_MARKED_TEMPLATE.search(template_of(tokenizer, chat.where)))
        *self.before, self.message = (dict(message) for message in chat.messages[: i + 1])
        self.name = f"{chat.where}: message {i - bool(chat.system_prompt)} (assistant)"
        self.calls: Sequence[Mapping[str, object]] = self.message.get("tool_calls") or ()
        if not self.calls and not any(text.strip() for key in TEXTS for text in texts_of(self.message.get(key))):
            raise DataError(
                f"{self.name}: 'content' is {shorten(self.message.get('content'))}, so there is nothing to learn; "
                "write the answer, or remove the message"
            )
        self.plain = self._render(self.message)
        self.word = "zq"
        while self.word in self.plain:
            self.word += "q"

    def turn(self) -> RenderedTurn:
        """Return the turn."""
        if self.is_marked:
            return self._marked_turn()
        plain, ends = self._unmark(self._render(self._mark(self.message)))
        if plain != self.plain:
            raise DataError(
                f"{self.name}: the chat template renders other text once a word is added to the message, so the "
                "assistant's tokens cannot be located. Mark them in the template with {% generation %}, or give one "
                "[prompt, output] pair for each turn"
            )
        content = self.message.get("content")
        if self.verbatim and isinstance(content, str) and self._lost(plain, *self._split(plain)) == "content":
            blank = self._mark({**self.message, "content": ""})
            plain, ends = self._unmark(self._render(blank).replace(self._word(0), f"{content}{self._word(0)}"))
        prompt, start = self._check(plain, *self._split(plain))
        if not ends or not set(range(1, len(self.calls) + 1)) <= set(ends):
            self._refuse("tool_calls" if self.calls else "content", plain)
        end = max(ends.values())
        alone, followed = plain[end:], self._tail_before(QUESTION)
        size = count_common(alone, alone if followed is None else followed)
        places = (end - start, end - start + size)
        diverges = followed is None or size < len(alone)
        following = (followed or "")[size:] if not self.calls else self._following_calls(alone)
        return RenderedTurn(
            self.name, prompt, plain[start:], places, diverges=diverges, following=following[:_LONGEST_MARK]
        )

    def _marked_turn(self) -> RenderedTurn:
        prompt, start = self._check(self.plain, *self._split(self.plain))
        messages, places = [*self.before, self.message], list[int]()
        encoded = apply_template(
            self.tokenizer, attrs.evolve(self.chat, messages=messages), tokenize=True, return_dict=True,
            return_assistant_tokens_mask=True, tokenizer_kwargs={"return_offsets_mapping": True},
        )  # fmt: skip
        for (begin, end), mark in zip(encoded["offset_mapping"], encoded["assistant_masks"], strict=True):
            if mark and end > start:
                joins = bool(places) and places[-1] >= begin - start
                places = [*places[:-1], end - start] if joins else [*places, max(begin - start, 0), end - start]
        marked = "".join(self.plain[start + a : start + b] for a, b in zip(places[::2], places[1::2], strict=True))
        plain, ends = self._unmark(self._render(self._mark(self.message)))
        names = [ends.get(k, -1) - start if plain == self.plain else None for k in range(1, len(self.calls) + 1)]
        for call, end in zip(self.calls, names, strict=True):
            if str(_function_of(call).get("name")) not in marked or not _is_inside(end, places):
                self._refuse("tool_calls", marked)
        answers = (text.rpartition("</think>")[2] for text in texts_of(self.message.get("content")))
        if not marked or not all(_squash(text) in _squash(marked) for text in answers):
            self._refuse("content", marked)
        return RenderedTurn(self.name, prompt, self.plain[start:], tuple(places), is_marked=True)

    def _split(self, plain: str) -> tuple[str, int, bool]:
        """Return the prompt, where the turn goes on after it in a rendering, and whether the prompt begins the turn.

        The end of the prompt, such as <think>, and the rendering may differ in white space.
        """
        if not self.before:
            start = self._first_start(plain)
            return plain[:start], start, True
        prompt = str(apply_template(self.tokenizer, self._chat(self.before), add_generation_prompt=True))
        k = start = count_common(prompt, plain)
        place, is_exact = start, k == len(prompt)
        while k < len(prompt):
            here = plain[place : place + 1]
            if prompt[k].isspace() or here == prompt[k]:
                k, place = k + 1, place + (here == prompt[k])
            elif here.isspace():
                place += 1
            else:
                return prompt, start, False
        if not is_exact and prompt[-1].isspace():
            place = len(plain) - len(plain[place:].lstrip())
        return prompt, place, True

    def _first_start(self, plain: str) -> int:
        """Return where a turn without a prompt begins: after the header that the template writes in other prompts."""
        question = self._try([QUESTION]) or ""
        header = (self._try([QUESTION], add_generation_prompt=True) or "").removeprefix(question)
        place = plain.find(header)
        return place + len(header) if header and place >= 0 else 0

    def _check(self, plain: str, prompt: str, start: int, begins: bool) -> tuple[str, int]:
        """Return the prompt and where the turn goes on after it in a rendering.

        Raises:
            DataError: text of the message is not rendered, or the prompt does not begin the turn.
        """
        if (lost := self._lost(plain, prompt, start, begins)) is not None:
            self._refuse(lost, plain[start:])
        if not begins:
            option = self._helping_option()
            hint = (
                f"With data.chat_template_options={{{option}}} the prompt begins this message"
                if option
                else "If the prompt begins a thought, write the thinking into the message"
            )
            raise DataError(
                f"{self.name}: the policy would be sampled from a prompt that ends with {shorten(prompt[-30:])}, and "
                f"trained on this message after another one, which goes on with {shorten(plain[start:], 40)}. {hint}; "
                "or change the template (model.tokenizer.chat_template)"
            )
        return prompt, start

    def _helping_option(self) -> str:
        """Return the variable of the template, of those that many know, with which the prompt begins the message."""
        for name, value in itertools.product(THOUGHT_OPTIONS, (False, True)):
            other = copy.copy(self)
            other.chat = attrs.evolve(self.chat, template={**self.chat.template, name: value})
            plain = other._try([*self.before, self.message])  # noqa: SLF001  of the same class
            if plain is not None and other._split(plain)[2]:  # noqa: SLF001
                return f"{name}: {str(value).lower()}"
        return ""

    def _lost(self, plain: str, prompt: str, start: int, begins: bool) -> str | None:
        """Return the key of a text of the message that is not rendered, but for white space, or None.

        The end of the prompt may be the beginning of the text. A thought is not found in the answer.
        """
        head = _squash((prompt if begins else plain[:start])[-_LONGEST_TAG:])
        whole = head + _squash(plain[start:])
        for key in TEXTS:
            rest = whole
            for text in filter(None, map(_squash, texts_of(self.message.get(key)))):
                end = rest.rfind(text) + len(text)
                if end <= max(len(head), len(text) - 1):
                    return key
                if key == "content":
                    size = len(text.rpartition("</think>")[2])
                    whole = whole[: end - size] + "\0" * size + whole[end:]
        return None

    def _refuse(self, key: str, rendered: str) -> None:
        text = "".join(texts_of(self.message.get(key)))
        lost = self.calls if key == "tool_calls" else _without_rendered(text, rendered) or text
        hint = "set data.turns=each, which puts a content that is a text in its place whole, with its thinking; or "
        hint = hint if key == "content" and not (self.verbatim or self.is_marked) else ""
        raise DataError(
            f"{self.name}: the chat template drops {shorten(lost, 200)} of its '{key}', which would not be learnt: "
            f"{hint}remove it from the message, or change the template (model.tokenizer.chat_template)"
        )

    def _tail_before(self, message: Mapping[str, object]) -> str | None:
        """Return what the template writes after the message if another follows; None if it refuses that."""
        plain, ends = self._unmark(self._try([*self.before, self._mark(self.message), message]) or "")
        return plain[max(ends.values()) :] if ends else None

    def _following_calls(self, alone: str) -> str:
        """Return what the template writes after the message's calls of tools if a result follows."""
        call = self.calls[0]
        named = {"name": _function_of(call).get("name"), "tool_call_id": call.get("id")}
        result = {"role": "tool", "content": "?", **{key: value for key, value in named.items() if value is not None}}
        followed = self._tail_before(result) or ""
        return followed.removeprefix(alone) if followed.startswith(alone) else ""

    def _mark(self, message: Mapping[str, object]) -> dict[str, object]:
        """Return a message with words at the ends of its content (kind 0) and of its tools' names (kinds 1, 2, ...)."""
        marked, content = dict(message), message.get("content", "")
        if isinstance(content, str) and (content.strip() or not self.calls or self.message.get("content")):
            marked["content"] = _insert(content, self._word(0))
        elif isinstance(content, list | tuple):
            parts = list(content)
            for k in reversed(range(len(parts))):
                if isinstance(parts[k], Mapping) and isinstance(parts[k].get("text"), str):
                    parts[k] = {**parts[k], "text": _insert(parts[k]["text"], self._word(0))}
                    break
            marked["content"] = parts
        if self.calls:
            marked["tool_calls"] = [_rename(call, self._word(k)) for k, call in enumerate(self.calls, 1)]
        return marked

    def _word(self, kind: int) -> str:
        return f"{self.word}{kind}q"

    def _unmark(self, text: str) -> tuple[str, dict[int, int]]:
        """Return a text without marks, and the index at which the first of each kind was."""
        pieces = re.split(rf"{self.word}(\d+)q", text)
        found: dict[int, int] = {}
        size = len(pieces[0])
        for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            found.setdefault(int(mark), size)
            size += len(piece)
        return "".join(pieces[::2]), found

    def _render(self, message: Mapping[str, object]) -> str:
        return str(apply_template(self.tokenizer, self._chat([*self.before, message])))

    def _chat(self, messages: Sequence[Mapping[str, object]]) -> Chat:
        return attrs.evolve(self.chat, messages=messages)

    def _try(self, messages: Sequence[Message], **how: Any) -> str | None:
        """Return the rendering of other messages, or None where the template refuses them."""
        try:
            return str(apply_template(self.tokenizer, self._chat(messages), **how))
        except DataError:
            return None


def _insert(content: str, mark: str) -> str:
    """Add a mark at the end of a text, before white space, which a template may remove."""
    text = content.rstrip()
    return text + mark + content[len(text) :]


def texts_of(value: object) -> list[str]:
    """Return the texts of a message's content: the string itself, or those of its parts."""
    if isinstance(value, str):
        return [value]
    parts = value if isinstance(value, list | tuple) else ()
    return [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]


def _function_of(call: Mapping[str, Any]) -> Mapping[str, object]:
    function: Mapping[str, Any] = call.get("function") or call
    return function


def _rename(call: Mapping[str, Any], mark: str) -> dict[str, object]:
    """Return a tool call with a mark at the end of its function's name."""
    name = f"{_function_of(call).get('name')}{mark}"
    return {**call, "function": {**call["function"], "name": name}} if call.get("function") else {**call, "name": name}


def _is_inside(place: int | None, places: Sequence[int]) -> bool:
    """Return whether a character ends in one of several parts, given by their ends; True if its place is unknown."""
    return place is None or any(a < place <= b for a, b in zip(places[::2], places[1::2], strict=True))


def _squash(text: str) -> str:
    return "".join(text.split())


def _without_rendered(text: str, rendered: str) -> str:
    """Return a text without its end, if that is what a rendering begins with."""
    whole, begun = _squash(text), _squash(rendered)
    num_kept = next(k for k in range(min(len(whole), len(begun)), -1, -1) if whole.endswith(begun[:k]))
    while num_kept:
        num_kept -= not text[-1].isspace()
        text = text[:-1]
    return text
