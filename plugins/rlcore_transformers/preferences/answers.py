"""Tokenise prompts with the answers to them, so that every answer to a prompt begins at the same token.

Prompt and answer are rendered and tokenised as one text, and the prompt once more alone. The answers begin where these
token sequences first differ from the prompt's: a token that spans the end of the prompt belongs to the answers.

Also in this file: rows of preferences that are token ids already, as other libraries prepare and store them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Row, Sample, is_conversation
from rlcore_transformers.data.chat import Chat, make_chat, render_prompt
from rlcore_transformers.data.messages import TRAIN_KEYS, has_value, is_trained
from rlcore_transformers.data.rendered_turns import TEXTS, texts_of
from rlcore_transformers.data.rows import refuse_empty
from rlcore_transformers.data.tokens import (
    count_common,
    encode,
    eos_id,
    missing_opening,
    opening_tokens,
    rendered_opening,
    shorter,
    truncated_prompt,
)
from rlcore_transformers.data.turns import tokenise_chats

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

Conversation = Sequence[Mapping[str, Any]]
Content = str | Conversation


@attrs.frozen(eq=False)
class Exchange:
    """A prompt and answers to it: all strings, or all conversations.

    Attributes:
        where: the row, for errors.
        prompt: what comes before the answers; empty if there is nothing.
        answers: the answers.
        template: further variables of the chat template.
    """

    where: str
    prompt: Content
    answers: tuple[Content, ...]
    template: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def is_chat(self) -> bool:
        """Return whether this is a conversation."""
        return not isinstance(self.answers[0], str)


def read_content(row: Mapping[str, object], key: str, where: str) -> Content:
    """Return the string or the messages under a key of a row.

    Raises:
        DataError: there is no such key, or its value has another form.
    """
    value = row.get(key)
    if isinstance(value, str):
        return value
    if is_conversation(value):
        messages: Conversation = value  # type: ignore[assignment]
        return messages
    refuse_empty(row, (key,), where)
    if value is None:
        raise DataError(
            f"{where}: has no key '{key}' (keys: {', '.join(map(repr, row)) or 'none'}); "
            f"data.columns renames a column: {{{key}: its name}}"
        )
    raise DataError(
        f"{where}: '{key}' is {shorten(value)} ({type(value).__name__}); it must be a string, or a list of "
        "{role, content} messages"
    )


def check_forms(exchanges: Sequence[Exchange]) -> None:
    """Check that either all rows are conversations or none is.

    Raises:
        DataError: two rows differ; it names the first that differs from the first row.
    """
    for each in exchanges:
        if each.is_chat != exchanges[0].is_chat:
            kinds = ["plain text", "a conversation"]
            raise DataError(
                f"{each.where}: is {kinds[each.is_chat]}, but {exchanges[0].where} is {kinds[not each.is_chat]}; write "
                "all rows in one form"
            )


def tokenise_answers(
    exchanges: Sequence[Exchange], tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int
) -> list[tuple[Sample, ...]]:
    """Return one sample for each answer, in which the answer is chosen.

    Plain answers end with EOS if `data.append_eos` is set. A prompt is truncated to `data.max_prompt_tokens` and then
    the whole to `data.max_sample_tokens` and the model's context, on the right. A sample whose answer is empty, or is
    cut off, has no chosen token.

    Args:
        exchanges: the rows.
        tokenizer: the policy's tokenizer.
        data: the options; its own sources are not read.
        max_length: length of the model's context in tokens; 0 if it is unbounded.

    Raises:
        DataError: a row cannot be rendered.
    """
    check_forms(exchanges)
    is_chat = bool(exchanges) and exchanges[0].is_chat
    opening = () if is_chat else opening_tokens(tokenizer, data.add_bos)
    parts = (_tokenise_chats if is_chat else _tokenise_texts)(exchanges, tokenizer, data)
    samples = []
    for each, (prompt, answers) in zip(exchanges, parts, strict=True):
        start = missing_opening(prompt or answers[0][0], opening) + prompt
        samples.append(join_answers(start, answers, tokenizer, data, max_length=max_length, where=each.where))
    return samples


def join_answers(
    prompt: list[int], answers: Sequence[tuple[list[int], int]], tokenizer: PreTrainedTokenizerBase, data: DataConfig,
    *, max_length: int, where: str,
) -> tuple[Sample, ...]:  # fmt: skip
    """Return the prompt with each answer, truncated as `data` says and to the model's context.

    Args:
        prompt: token ids.
        answers: the token ids of each answer, and how many of them are chosen; those after them close its turn.
        tokenizer: the policy's tokenizer.
        data: the options; its own sources are not read.
        max_length: length of the model's context in tokens; 0 if it is unbounded.
        where: the row, for errors.

    Raises:
        DataError: `data.max_prompt_tokens` leaves no room for a prompt.
    """
    start = truncated_prompt(prompt, tokenizer, data, where)
    limit = shorter(data.max_sample_tokens, max_length)
    is_whole = len(start) == len(prompt)
    return tuple(attrs.evolve(_join(start, *answer, limit), has_whole_prompt=is_whole) for answer in answers)


_Parts = tuple[list[int], list[tuple[list[int], int]]]
"""The tokens of a prompt, and those of each answer with the number of them that are chosen."""


def _tokenise_texts(
    exchanges: Sequence[Exchange], tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> Iterator[_Parts]:
    alone, eos = bool(data.outputs_begin_text), eos_id(tokenizer, data.append_eos)
    texts = [
        [each.prompt, *(answer if alone else f"{each.prompt}{answer}" for answer in each.answers)] for each in exchanges
    ]
    flat = [(each.where, str(text)) for each, group in zip(exchanges, texts, strict=True) for text in group]
    ids = iter(encode(tokenizer, [text for _, text in flat], lambda i: flat[i][0]))
    for each, group in zip(exchanges, texts, strict=True):
        prompt, *wholes = [next(ids) for _ in group]
        shared = min(count_common(prompt, whole) for whole in wholes)
        start, answers = (prompt, wholes) if alone else (prompt[:shared], [whole[shared:] for whole in wholes])
        ended = [
            [*answer, eos] if eos is not None and text and answer[-1:] != [eos] else answer
            for answer, text in zip(answers, each.answers, strict=True)
        ]
        # The other answer may share a token with the end of the prompt, which an empty one then begins with.
        yield start, [(answer, len(answer) if text else 0) for answer, text in zip(ended, each.answers, strict=True)]


def _tokenise_chats(
    exchanges: Sequence[Exchange], tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> Iterator[_Parts]:
    written = [[answer for answer in each.answers if not _is_empty(answer)] for each in exchanges]
    chats = [
        make_chat(each.where, [*each.prompt, *answer], data, first=len(each.prompt), template=each.template)
        for each, answers in zip(exchanges, written, strict=True)
        for answer in answers
    ]
    for chat in chats:
        _refuse_weights(chat)
    rows = iter(tokenise_chats(tokenizer, chats, data))
    for each, texts in zip(exchanges, written, strict=True):
        samples = [next(rows) for _ in texts]
        if not samples:
            yield _tokenise_prompt(each, tokenizer, data), [([], 0) for _ in each.answers]
            continue
        if (most := max(map(len, samples))) > 1:
            raise DataError(
                f"{each.where}: an answer has {most} turns of the assistant, which data.turns=each would train on one "
                "by one, but an answer has one verdict; give one row for each turn"
            )
        wholes, masks = zip(*(turns[0] for turns in samples), strict=True)
        shared = min(*(_first(mask) for mask in masks), *(count_common(wholes[0], whole) for whole in wholes))
        found = iter(
            [
                (whole[shared:], len(mask) - _first(mask[::-1]) - shared)
                for whole, mask in zip(wholes, masks, strict=True)
            ]
        )
        yield wholes[0][:shared], [([], 0) if _is_empty(answer) else next(found) for answer in each.answers]


def _is_empty(answer: Content) -> bool:
    """Return whether an answer in messages has no text: all of them are the assistant's, without text and calls."""
    return not any(
        message["role"] != "assistant" or has_value(message.get("tool_calls")) or message.get("content") is None
        or any(text.strip() for key in TEXTS for text in texts_of(message.get(key)))
        for message in answer if isinstance(message, Mapping)
    )  # fmt: skip


def _refuse_weights(chat: Chat) -> None:
    for i, message in enumerate(chat.messages):
        if i >= chat.first and message["role"] == "assistant" and not is_trained(message, f"{chat.where}: message {i}"):
            raise DataError(
                f"{chat.where}: message {i - bool(chat.system_prompt)} (assistant): is to be left out of the loss (one "
                f"of {', '.join(TRAIN_KEYS)} is 0 or false), and answers are compared as a whole; move the message "
                "into the prompt, or leave the key out"
            )


def _tokenise_prompt(each: Exchange, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[int]:
    if not each.prompt:
        return []
    chat = make_chat(each.where, each.prompt, data, template=each.template)  # type: ignore[arg-type]
    (ids,) = encode(tokenizer, [render_prompt(tokenizer, chat)], lambda _: each.where)
    return missing_opening(ids, rendered_opening(tokenizer, data.add_bos)) + ids


def _first(mask: list[bool]) -> int:
    return mask.index(True) if True in mask else len(mask)


def _join(start: list[int], answer: list[int], count: int, limit: int) -> Sample:
    tokens = [*start, *answer][: limit or None]
    mask = tuple(k >= len(start) and k < len(start) + count and k > 0 for k in range(len(tokens)))
    return Sample(tokens=tuple(tokens), action_mask=mask, ended=len(tokens) == len(start) + len(answer))


def number_rows(rows: Sequence[object], what: str) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the name of each row, for errors, and the row, which must be a mapping.

    Raises:
        DataError: there are no rows, or one is no mapping.
    """
    if not rows:
        raise DataError(f"{what} is empty; at least one row is needed")
    for i, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise DataError(f"{what}[{i}]: is {shorten(row)} ({type(row).__name__}); a row must be a mapping")
        yield f"{what}[{i}]", row


KEYS = {
    "prompt": ("prompt_ids", "prompt_input_ids"),
    "chosen": ("chosen_ids", "chosen_input_ids"),
    "rejected": ("rejected_ids", "rejected_input_ids"),
    "completion": ("completion_ids", "completion_input_ids"),
}
"""Part of a row → its keys, of which the second is that of older versions of TRL."""


def are_token_ids(rows: Sequence[tuple[str, Mapping[str, object]]], answers: Sequence[str]) -> bool:
    """Return whether rows are token ids: each has them for all `answers`, such as `chosen` and `rejected`.

    Raises:
        DataError: some rows are text, others token ids; the message names the first that differs from the first row.
    """
    kinds = [all(_key(row, part) for part in answers) for _, row in rows]
    for (where, _), kind in zip(rows, kinds, strict=True):
        if kind != kinds[0]:
            names = ["text", "token ids"]
            raise DataError(
                f"{where}: is {names[kind]}, but {rows[0][0]} is {names[not kind]}; write all rows in one form"
            )
    return bool(kinds) and kinds[0]


def read_token_ids(
    rows: Iterable[tuple[str, Mapping[str, object]]], answers: Sequence[str], tokenizer: PreTrainedTokenizerBase,
    data: DataConfig, *, max_length: int,
) -> list[tuple[Sample, ...]]:  # fmt: skip
    """Return one sample for each answer of each row, whose tokens are taken as they are, without BOS or EOS.

    With the ids of a prompt, those of the answers follow it. Without, they contain it: it is what they begin with, but
    for at least one token of each.

    Args:
        rows: the name of each row, for errors, and the row.
        answers: the parts of a row that are answers.
        tokenizer: the policy's tokenizer.
        data: the options; prompts and answers are truncated as those of texts are.
        max_length: length of the model's context in tokens; 0 if it is unbounded.

    Raises:
        DataError: a row has other values than token ids of the tokenizer.
    """
    made = []
    for where, row in rows:
        ids = [_ids(row, str(_key(row, part)), len(tokenizer), where) for part in answers]
        prompt = []
        if (key := _key(row, "prompt")) is not None:
            prompt = _ids(row, key, len(tokenizer), where)
        elif len(ids) > 1:
            most = max(0, min(map(len, ids)) - 1)
            size = next((k for k in range(most) if len({one[k] for one in ids}) > 1), most)
            prompt, ids = ids[0][:size], [one[size:] for one in ids]
        counted = [(one, len(one)) for one in ids]
        made.append(join_answers(prompt, counted, tokenizer, data, max_length=max_length, where=where))
    return made


def token_keys(row: Mapping[str, object], parts: Iterable[str]) -> set[str]:
    """Return the keys of a row that hold the token ids of some parts."""
    return {key for part in parts if (key := _key(row, part)) is not None}


def _key(row: Mapping[str, object], part: str) -> str | None:
    return next((key for key in KEYS[part] if row.get(key) is not None), None)


def _ids(row: Row, key: str, size: int, where: str) -> list[int]:
    ids = row[key].tolist() if hasattr(row[key], "tolist") else row[key]  # of an array or a tensor
    if not isinstance(ids, list | tuple) or not all(type(each) is int and 0 <= each < size for each in ids):
        raise DataError(
            f"{where}: '{key}' is {shorten(ids)}; it must be a list of token ids of the policy's tokenizer, from 0 to "
            f"{size - 1}"
        )
    return list(ids)
