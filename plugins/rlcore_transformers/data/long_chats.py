"""Conversations of many turns, tokenised in linear time: some turns are rendered alone, all are found in one rendering.

A turn that is rendered as the last one costs as much as the whole conversation before it. Of a long conversation, few
turns are: the first and the last of every kind, and turns at the half, the quarter, and so on. If the template appends,
so that each of these stands in the whole conversation as it does alone, the other turns are found there by the text
that the template writes before and after a turn of their kind. Otherwise every turn is rendered.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore_transformers.data.chat import Chat, apply_template
from rlcore_transformers.data.messages import TRAIN_KEYS, has_value
from rlcore_transformers.data.rendered_turns import TEXTS, texts_of
from rlcore_transformers.data.tokens import encode_batch, encode_continuations

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.types import Message

LONG = 16
"""Conversations with more turns to train on are long."""
_BEGINNING = 64
"""Characters before a turn in which the template may have written the beginning of its text."""


@attrs.frozen
class TurnSpan:
    """A turn that was rendered alone: the index of its message, and its tokens in the whole conversation."""

    message: int
    start: int
    end: int


@attrs.frozen
class _Kind:
    """What the template writes before and after turns of one kind, and the last tokens of both the prompt and turn."""

    before: str
    after: str
    opening: int
    closing: int


def turns_to_render(chat: Chat, turns: Sequence[int]) -> list[int]:
    """Return those of the messages `turns` that are to be rendered alone; all if they are not many, or are all unlike.

    They are the first and the last turn of each kind, and those at n - 1, n / 2, n / 4, ... of n turns.
    """
    if len(turns) <= LONG:
        return list(turns)
    kinds: dict[Any, list[int]] = {}
    for i in turns:
        kinds.setdefault(_kind_of(chat, i), []).append(i)
    found = {i for each in kinds.values() for i in (each[0], each[-1])} | {turns[-1]}
    k = len(turns)
    while k := k // 2:
        found.add(turns[k])
    return sorted(found) if len(found) <= len(turns) // 2 else list(turns)


def _kind_of(chat: Chat, i: int) -> object:
    """Return what a template may distinguish in a turn: its keys, its thinking, and its neighbours."""

    def shape(k: int) -> Any:
        if not 0 <= k < len(chat.messages):
            return None
        message = chat.messages[k]
        content = message.get("content")
        text = "".join(texts_of(content))
        keys = frozenset(str(key) for key in message if has_value(message[key]) and key not in TRAIN_KEYS)
        return message["role"], keys, isinstance(content, str), bool(text.strip()), "think>" in text

    return shape(i - 1), shape(i), shape(i + 1)


def find_other_turns(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, turns: Sequence[int], known: Sequence[TurnSpan],
    prompt: str, text: str, ids: Sequence[int], num_prompt: int,
) -> list[TurnSpan] | None:  # fmt: skip
    """Return the tokens of the turns that were not rendered alone, or None if they cannot be found with certainty.

    Args:
        tokenizer: the tokenizer.
        chat: the conversation.
        turns: the messages that are trained on.
        known: the turns that were rendered alone; the last one of all is among them.
        prompt: the prompt of the last turn.
        text: the text of the last turn.
        ids: the tokens of the whole.
        num_prompt: number of tokens of the prompt.
    """
    if not tokenizer.is_fast:
        return None
    marked = _marked(tokenizer, chat, turns, prompt + text)
    offsets = _offsets(tokenizer, prompt, ids[:num_prompt])
    if marked is None or offsets is None:
        return None
    whole = _Whole(chat, prompt, ids, *offsets, *marked)
    kinds: dict[Any, _Kind] = {}
    for span in known:
        if span.message == turns[-1]:
            continue
        if (kind := whole.kind(span)) is None or kinds.setdefault(_kind_of(chat, span.message), kind) != kind:
            return None
    done = {span.message for span in known}
    found = [whole.find(i, kinds.get(_kind_of(chat, i))) for i in turns if i not in done]
    spans = [span for span in found if span is not None]
    if len(spans) < len(found):
        return None
    alone = encode_continuations(tokenizer, [whole.text_of(span) for span in spans])
    is_same = all(list(ids[span.start : span.end]) == own for span, own in zip(spans, alone, strict=True))
    return spans if is_same else None


def _offsets(
    tokenizer: PreTrainedTokenizerBase, prompt: str, ids: Sequence[int]
) -> tuple[int, list[int], list[int]] | None:
    """Return the number of tokens before the text, and where each token of it begins and ends."""
    encoded = encode_batch(tokenizer, [prompt], "text {}".format, offsets=True)
    (own,), (pairs,) = encoded["input_ids"], encoded["offset_mapping"]
    opening = len(ids) - len(own)
    starts, ends = [start for start, _ in pairs], [end for _, end in pairs]
    is_sorted = all(a <= b for each in (starts, ends) for a, b in pairwise(each))
    return (opening, starts, ends) if opening >= 0 and list(ids[opening:]) == list(own) and is_sorted else None


def _marked(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, turns: Sequence[int], plain: str
) -> tuple[dict[int, int], dict[int, int]] | None:
    """Return where the texts of the messages beside turns begin and where they end, by the index of the message.

    The conversation is rendered once, with a word at the beginning and at the end of each. None is returned if the
    template renders another text then.
    """
    word, last = "zq", turns[-1]
    neighbours = {i + step for i in turns for step in (-1, 1)} - {last}
    while word in plain:
        word += "q"
    messages = [
        _mark(message, f"{word}{2 * i}q", f"{word}{2 * i + 1}q") if i in neighbours else dict(message)
        for i, message in enumerate(chat.messages[: last + 1])
    ]
    try:
        rendered = str(apply_template(tokenizer, attrs.evolve(chat, messages=messages)))
    except DataError:
        return None
    pieces = re.split(rf"{word}(\d+)q", rendered)
    if "".join(pieces[::2]) != plain:
        return None
    begins, ends, size = dict[int, int](), dict[int, int](), len(pieces[0])
    for number, piece in zip(map(int, pieces[1::2]), pieces[2::2], strict=True):
        (ends if number % 2 else begins).setdefault(number // 2, size)
        size += len(piece)
    return begins, ends


def _mark(message: Message, begin: str, end: str) -> dict[str, object]:
    """Return a message with words around its text, or before the name of its first call if it has no text."""
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, str) and content.strip():
        return {**message, "content": _surround(content, begin, "" if calls else end)}
    if (
        isinstance(content, list | tuple)
        and content
        and all(texts_of([part]) and texts_of([part])[0] for part in content)
    ):
        parts = [dict(part) for part in content]
        parts[0]["text"] = _surround(parts[0]["text"], begin, "")
        parts[-1]["text"] = _surround(parts[-1]["text"], "", "" if calls else end)
        return {**message, "content": parts}
    if calls and isinstance(function := calls[0].get("function"), Mapping):
        first = {**calls[0], "function": {**function, "name": f"{begin}{function.get('name')}"}}
        return {**message, "tool_calls": [first, *calls[1:]]}
    return dict(message)


def _surround(text: str, begin: str, end: str) -> str:
    inner = text.strip()
    start = text.index(inner)
    return text[:start] + begin + inner + end + text[start + len(inner) :]


@attrs.frozen
class _Whole:
    """A conversation rendered as a whole: its tokens, and where each of them and the texts of its messages are."""

    chat: Chat
    prompt: str
    ids: Sequence[int]
    opening: int
    starts: list[int]
    ends: list[int]
    begins: dict[int, int]
    closes: dict[int, int]

    def text_of(self, span: TurnSpan) -> str:
        """Return the text of a turn's tokens."""
        return self.prompt[self.starts[span.start - self.opening] : self.ends[span.end - 1 - self.opening]]

    def kind(self, span: TurnSpan) -> _Kind | None:
        """Return what stands before and after a turn that was rendered alone, but for white space of the messages."""
        first, last = span.start - self.opening, span.end - 1 - self.opening
        if not 0 < first <= last < len(self.ends) or span.message + 1 not in self.begins:
            return None
        before = ""
        if span.message:
            if span.message - 1 not in self.closes:
                return None
            before = self.prompt[self.closes[span.message - 1] : self.starts[first]]
            before = before.removeprefix(self._space(span.message - 1, after=True))
        after = self.prompt[self.ends[last] : self.begins[span.message + 1]]
        after = after.removesuffix(self._space(span.message + 1, after=False))
        return _Kind(before, after, self.ids[span.start - 1], self.ids[span.end - 1])

    def find(self, i: int, kind: _Kind | None) -> TurnSpan | None:
        """Return the tokens of a turn of a kind; None if they are not where the kind says."""
        if kind is None or i - 1 not in self.closes or i + 1 not in self.begins:
            return None
        space, place = self._space(i - 1, after=True), self.closes[i - 1]
        lead = next((each for each in (space, "") if self.prompt.startswith(each + kind.before, place)), None)
        rest, stop = self._space(i + 1, after=False), self.begins[i + 1]
        tail = next((each for each in (rest, "") if self.prompt.endswith(kind.after + each, 0, stop)), None)
        if lead is None or tail is None:
            return None
        begin, end = place + len(lead + kind.before), stop - len(kind.after + tail)
        first, last = bisect_left(self.starts, begin), bisect_right(self.ends, end) - 1
        if not (0 < first <= last and self.starts[first] == begin and self.ends[last] == end):
            return None
        span = TurnSpan(i, first + self.opening, last + 1 + self.opening)
        tokens = self.ids[span.start - 1], self.ids[span.end - 1]
        return span if tokens == (kind.opening, kind.closing) and self._is_whole(i, begin, end) else None

    def _is_whole(self, i: int, begin: int, end: int) -> bool:
        """Return whether what an assistant wrote stands in its turn, but for white space."""
        message = self.chat.messages[i]
        shown = _squash(self.prompt[max(begin - _BEGINNING, 0) : end])
        names = [(call.get("function") or call).get("name") for call in message.get("tool_calls") or ()]
        texts = [text for key in TEXTS for text in texts_of(message.get(key))]
        return all(_squash(str(text)) in shown for text in [*texts, *names])

    def _space(self, i: int, *, after: bool) -> str:
        """Return the white space at the end or the beginning of a message's text."""
        texts = texts_of(self.chat.messages[i].get("content"))
        if not texts:
            return ""
        text = texts[-1] if after else texts[0]
        return text[len(text.rstrip()) :] if after else text[: len(text) - len(text.lstrip())]


def _squash(text: str) -> str:
    return "".join(text.split())
