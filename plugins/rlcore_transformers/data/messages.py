"""Messages as people publish them, in the form that chat templates read, and the keys of rows that nothing reads.

Also in this file: which parts of a message are images or other media: models that see read images, and all else is
refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from rlcore.config.options import from_json
from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore.types import Message, is_conversation

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

IMAGE_TYPES = ("image", "image_url", "input_image")
"""Types of the parts of a message that show an image: of `transformers`, of chat completions and of responses."""
IMAGE_SOURCES = ("image", "image_url")
"""Keys that make a part without a type an image."""
IMAGE_COLUMNS = ("images", "image")
"""Keys under which a row or a message holds its images."""

MEDIA_COLUMNS = (*IMAGE_COLUMNS, "videos", "video", "audios", "audio")
"""Keys under which a row or a message holds images, videos or sounds."""
MEDIA_TYPES = (
    *IMAGE_TYPES, "video", "video_url", "input_video", "audio", "audio_url", "input_audio", "file", "input_file",
)  # fmt: skip
"""Types of the parts of a message that are no texts."""


def is_image(part: object) -> bool:
    """Return whether a part of a message's content is an image."""
    if not isinstance(part, Mapping):
        return False
    kind = part.get("type")
    return kind in IMAGE_TYPES or (kind is None and any(part.get(key) is not None for key in IMAGE_SOURCES))


def holds_images(row: Mapping[str, object]) -> bool:
    """Return whether a row or a message has images in a column of its own."""
    return any(_is_there(row.get(name)) for name in IMAGE_COLUMNS)


def media_column(row: Mapping[str, object], columns: Sequence[str] = MEDIA_COLUMNS) -> str | None:
    """Return the first of `columns` in which a row or a message has images, videos or sounds, or None."""
    return next((name for name in columns if _is_there(row.get(name))), None)


def media_part(message: Mapping[str, object]) -> str | None:
    """Return the type of the first part of a message's content that is no text but an image, a video or a sound."""
    content = message.get("content")
    for part in content if isinstance(content, list | tuple) else ():
        if is_image(part) or (isinstance(part, Mapping) and part.get("type") in MEDIA_TYPES):
            return str(part.get("type") or "image")
    return None


def _is_there(value: object) -> bool:
    if isinstance(value, float):  # NaN, an empty cell of a DataFrame
        return not math.isnan(value)
    return value is not None and not (isinstance(value, str | list | tuple) and not value)


def shows_image(message: Mapping[str, object]) -> bool:
    """Return whether a message shows an image, in a part of its content or in a column of its own."""
    content = message.get("content")
    return holds_images(message) or (isinstance(content, list | tuple) and any(map(is_image, content)))


SPEAKERS: Mapping[str, str] = MappingProxyType(
    {
        "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
        "bot": "assistant", "model": "assistant", "function_call": "assistant", "system": "system", "tool": "tool",
        "observation": "tool", "function_response": "tool",
    }
)  # fmt: skip
"""Roles of the speakers in conversations of ShareGPT."""
CALLER = "function_call"
"""Speaker of ShareGPT whose texts are calls of tools; also the key of a message's one call, an older one of OpenAI."""
TRAIN_KEYS = ("weight", "loss_weight", "loss_scale", "loss", "train", "training", "trainable")
"""Keys of a message whose value, 1 or 0, states whether it is trained on."""
_MESSAGE_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", *TRAIN_KEYS})
_RESULT_KEYS = _MESSAGE_KEYS | {"name"}
_PART_KEYS = frozenset({"type", "text"})
_CALL_KEYS = frozenset({"id", "type", "index", "function", "name", "arguments"})
_TEXT_TYPES = ("text", "input_text", "output_text")
_TEXT_KEYS = ("text", "value", "content")
_NUM_ROWS = 3
"""Rows that a warning on a key lists."""
_STREAMED = re.compile(r"\[(\d+):\]$")
"""End of the name of rows of a stream: the index of the first one."""
_named: WeakKeyDictionary[Any, set[tuple[str, ...]]] = WeakKeyDictionary()
"""For each tokenizer, the keys of streamed rows that have been named."""


def has_value(value: object) -> bool:
    """Return whether a value is there: not null, NaN (an empty cell of a DataFrame), or an empty text or container."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return False
    return not (isinstance(value, str | list | tuple | Mapping) and len(value) == 0)


def without_arrays(value: object) -> object:
    """Return a value whose numpy arrays are lists, in which pandas returns the lists of a parquet file."""
    if type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [without_arrays(each) for each in value]
    return {key: without_arrays(each) for key, each in value.items()} if isinstance(value, Mapping) else value


def without_nulls(value: object) -> object:
    """Return a value without the keys of mappings that are None, which Arrow adds where other rows have them."""
    if isinstance(value, Mapping):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


def read_conversation(value: Any, where: str, *, is_text: bool = True) -> Any:
    """Return a value whose messages have the form that chat templates read; anything else is returned as it is.

    * A text that is the JSON of messages becomes these. One message, {role, content} or {from, value}, is a
      conversation.
    * Messages of ShareGPT, {from, value}, become {role, content}; a call of a tool becomes one of `tool_calls`.
    * `text` and `value` of a message become its `content`, and those of its parts their `text`.

    Args:
        value: a conversation, one message, or anything else.
        where: name of the value in errors.
        is_text: whether the value may be a text, which is then no JSON.

    Raises:
        DataError: a message of ShareGPT is malformed, or a text that must be a conversation is no JSON.
    """
    if isinstance(value, str):
        value = _parse(value, where, is_text=is_text)
    elif not isinstance(value, list | tuple) or (value and not isinstance(value[0], str)):
        value = without_arrays(value) if _has_arrays(value) else value
    if is_sharegpt(value):
        return read_sharegpt(value, where)
    value = [value] if _is_message(value) else value
    return [_message(each, f"{where}[{i}]") for i, each in enumerate(value)] if is_conversation(value) else value


def _is_message(value: object) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("role"), str) and "content" in value


def _has_arrays(value: object) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_arrays, value.values()))
    return type(value).__module__ == "numpy" or (isinstance(value, list | tuple) and any(map(_has_arrays, value)))


def _parse(text: str, where: str, *, is_text: bool) -> Any:
    if is_text and not (text.lstrip().startswith(("[", "{")) and ('"role"' in text or '"from"' in text)):
        return text
    try:
        value = from_json(text)
    except ValueError as error:
        if is_text or not text.strip():
            return text
        raise DataError(
            f"{where}: is {shorten(text)}, a text that is no JSON ({error}); it must be a list of {{role, content}} "
            "messages, or one as JSON, as json.dumps writes it"
        ) from error
    return value if not is_text or is_conversation(value) or _is_said(value) else text


def _is_said(value: object) -> bool:
    """Return whether a value of a text that is JSON is one message, or ShareGPT's: an answer may be JSON, too."""
    if isinstance(value, Mapping):
        speaker, said = (value.get("from", value.get("role")), value.get("value", value.get("content")))
        return isinstance(speaker, str) and speaker in SPEAKERS and isinstance(said, str)
    return is_sharegpt(value)


def is_sharegpt(value: object) -> bool:
    """Return whether a value is a conversation of {from, value}, or one such message."""
    if isinstance(value, Mapping):
        return "from" in value
    return isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) and "from" in each for each in value)


def read_sharegpt(value: Any, where: str) -> list[dict[str, object]]:
    """Return a conversation of {from, value}, or one such message, as {role, content} messages.

    Raises:
        DataError: a message has another form, or an unknown speaker, or its call of a tool is no JSON.
    """
    messages = []
    for i, each in enumerate([value] if isinstance(value, Mapping) else value):
        if not isinstance(each, Mapping) or not isinstance(each.get("value"), str):
            raise DataError(f"{where}[{i}]: is {shorten(each)}; a message of ShareGPT is {{from, value}}, with texts")
        speaker = str(each.get("from"))
        if speaker not in SPEAKERS:
            raise DataError(f"{where}[{i}]: 'from' is {shorten(speaker)}; known speakers are {', '.join(SPEAKERS)}")
        rest = {key: value for key, value in each.items() if key not in ("from", "value")}
        said = (
            {"content": "", "tool_calls": _read_calls(each["value"], f"{where}[{i}]")}
            if speaker == CALLER else {"content": each["value"]}
        )  # fmt: skip
        messages.append({"role": SPEAKERS[speaker], **said, **rest})
    return messages


def _read_calls(text: str, where: str) -> list[dict[str, object]]:
    try:
        found = from_json(text)
    except ValueError:
        found = None
    calls = found if isinstance(found, list) else [found]
    if not calls or not all(isinstance(call, Mapping) and isinstance(call.get("name"), str) for call in calls):
        raise DataError(
            f"{where}: 'value' is {shorten(text)}; what the speaker {CALLER!r} says must be a call of a tool as JSON, "
            "{name, arguments}, or a list of them"
        )
    return [{"type": "function", "function": {"arguments": {}, **call}} for call in calls]


def _message(message: Mapping[str, object], where: str) -> dict[str, Any]:
    made = dict(message)
    if made.get("content") is None:
        key = next((key for key in ("text", "value") if isinstance(made.get(key), str)), None)
        made |= {"content": made.pop(key)} if key else {}
    elif isinstance(made["content"], list | tuple):
        made["content"] = [_part(part) for part in made["content"]]
    if isinstance(made.get(CALLER), Mapping) and not made.get("tool_calls"):
        made["tool_calls"] = [{"type": "function", "function": made.pop(CALLER)}]
    calls = made.get("tool_calls")
    if isinstance(calls, str):
        try:
            calls = made["tool_calls"] = from_json(calls) if calls.strip() else None
        except ValueError as error:
            raise DataError(f"{where}: 'tool_calls' is {shorten(calls)}, which is no JSON ({error})") from error
    if has_value(calls) and not (isinstance(calls, list | tuple) and all(isinstance(call, Mapping) for call in calls)):
        raise DataError(
            f"{where}: 'tool_calls' is {shorten(calls)}; it must be a list of calls, "
            "{type: function, function: {name, arguments}}"
        )
    return made


def _part(part: object) -> object:
    """Return a part of a content, whose text is under `text`."""
    if not isinstance(part, Mapping) or part.get("type", "text") not in _TEXT_TYPES:
        return part
    key = next((key for key in _TEXT_KEYS if isinstance(part.get(key), str)), None)
    if key is None or (key == "text" and part.get("type") in ("text", None)):
        return part
    return {
        "type": "text",
        "text": part[key],
        **{k: each for k, each in part.items() if k not in ("type", key, "text")},
    }


def is_trained(message: Mapping[str, object], where: str) -> bool:
    """Return whether a message is trained on: the assistant's are, unless one of `TRAIN_KEYS` is 0 or false.

    Raises:
        DataError: a key has another value than 1 and 0, two contradict each other, or one is 1 in a message of another
            role.
    """
    marks: dict[str, bool] = {}
    for key in TRAIN_KEYS:
        value = message.get(key)
        if value is None:
            continue
        if not (isinstance(value, bool | int | float) and value in (0, 1)):
            raise DataError(
                f"{where}: '{key}' is {shorten(value)}; it must be 0 or false, which leave the message out of the "
                "loss, or 1 or true: messages have no other weights, and sources of rows do (docs/data.md#mixtures)"
            )
        marks[key] = bool(value)
    if len(set(marks.values())) > 1:
        raise DataError(
            f"{where}: {' and '.join(f'{key!r} is {message[key]}' for key in marks)}; leave one of them out"
        )
    is_assistant = message["role"] == "assistant"
    if not is_assistant and any(marks.values()):
        key = next(iter(marks))
        raise DataError(
            f"{where}: '{key}' is {message[key]} in a message of the role {shorten(message['role'])}, and only what "
            "the assistant wrote is trained on; leave the key out"
        )
    return is_assistant and all(marks.values())


class Unread:
    """Keys of rows that nothing reads; a warning names each once, with the rows that have it.

    Args:
        tokenizer: the tokenizer, whose chat template may read further keys of messages.
        what: the option that holds the rows, for the warning.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, what: str) -> None:
        self._tokenizer, self._what = tokenizer, what
        self._found: dict[tuple[str, str], list[int]] = {}
        self._is_chat = bool(tokenizer.chat_template)
        self._trials: dict[tuple[str, str], list[bool]] = {}

    def row(self, i: int, row: Mapping[str, object], read: Collection[str]) -> None:
        """Note the keys of row number i that are not among `read`."""
        for key in row:
            if key not in read and has_value(row[key]):
                self._add("rows", str(key), i)

    def messages(self, i: int, value: Any, render: Callable[[Any], str | None]) -> None:
        """Note the keys of the messages of a value of row number i that neither rlcore nor the template reads.

        A key is not read by the template if messages are rendered alike without it, in the first rows that have it.

        Args:
            i: number of the row.
            value: a conversation, or anything else.
            render: returns the rendering of messages, or None where the template refuses them.
        """
        for place, key in dict.fromkeys(_unknown_keys(value)) if self._is_chat and is_conversation(value) else ():
            trials = self._trials.setdefault((place, key), [])
            if len(trials) < _NUM_ROWS and not any(trials):
                whole = render(value)
                trials.append(whole is None or whole != render(_without_key(value, place, key)))
            self._add(place, key, i)

    def _add(self, place: str, key: str, i: int) -> None:
        rows = self._found.setdefault((place, key), [])
        if rows[-1:] != [i]:
            rows.append(i)

    def warn(self, num_rows: int, advice: str) -> None:
        """Log which keys are not read; of a stream, those that have not been named."""
        for pair, trials in self._trials.items():
            if any(trials):
                self._found.pop(pair, None)
        streamed = _STREAMED.search(self._what)
        first = int(streamed[1]) if streamed else 0
        if streamed:
            named, option = _named.setdefault(self._tokenizer, set()), _STREAMED.sub("", self._what)
            found = {pair: rows for pair, rows in self._found.items() if (option, *pair) not in named}
            named |= {(option, *pair) for pair in found}
        else:
            found, option = self._found, self._what
        for place in dict.fromkeys(place for place, _ in found):
            keys = {key: rows for (each, key), rows in found.items() if each == place}
            shown = ", ".join(
                f"{key!r} ({_rows(rows, first, 0 if streamed else num_rows)})" for key, rows in keys.items()
            )
            get_logger("data").warning(f"{option}: keys of {place} are not read: {shown}; {advice}")


def _unknown_keys(messages: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield where a key is that rlcore does not read, and the key: in messages, their parts, and calls of tools."""

    def of(place: str, given: Any, known: Collection[str]) -> Iterator[tuple[str, str]]:
        yield from ((place, key) for key in given if key not in known and has_value(given[key]))

    for message in messages:
        yield from of("messages", message, _RESULT_KEYS if message["role"] in ("tool", "function") else _MESSAGE_KEYS)
        for call in message.get("tool_calls") or ():
            function = call.get("function")
            yield from of("tool calls", call, _CALL_KEYS)
            yield from of("tool calls", function if isinstance(function, Mapping) else {}, _CALL_KEYS)
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            if isinstance(part, Mapping) and not is_image(part):
                yield from of("parts of messages", part, _PART_KEYS)


def _without_key(messages: Iterable[Message], place: str, name: str) -> list[dict[str, object]]:
    """Return messages without a key at the given place."""

    def without(each: object) -> Any:
        if not isinstance(each, Mapping):
            return each
        return {key: without(value) if key == "function" else value for key, value in each.items() if key != name}

    if place == "messages":
        return [without(message) for message in messages]
    at = "tool_calls" if place == "tool calls" else "content"
    return [
        {**each, at: list(map(without, each[at]))} if isinstance(each.get(at), list | tuple) else dict(each)
        for each in messages
    ]


def _rows(rows: Sequence[int], first: int, num_rows: int) -> str:
    if len(rows) == num_rows > 1:
        return f"all {num_rows} rows"
    listed = ", ".join(str(first + i) for i in rows[:_NUM_ROWS])
    more = f" and {len(rows) - _NUM_ROWS} more" if len(rows) > _NUM_ROWS else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {listed}{more}"


def source_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text of a tokenizer's chat template or templates; empty if it has none."""
    template: object = tokenizer.chat_template
    return "\n".join(map(str, template.values())) if isinstance(template, Mapping) else str(template or "")
