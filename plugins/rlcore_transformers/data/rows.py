"""Rows of a source in the form that pipelines read: renamed columns, known formats, and texts read as messages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import is_conversation
from rlcore_transformers.data.chat import SPEAKERS
from rlcore_transformers.data.image_parts import shows_image
from rlcore_transformers.data.sources import load_source, read_types, rename

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

ANSWERS = ("chosen", "rejected")
PROMPT_KEYS = ("instruction", "conversations")
"""Keys of known formats that become the prompt."""
_NO_ROLE = (
    "is a text without a prompt, which data.as_messages cannot read as messages; give a prompt and an answer, or leave "
    "data.as_messages at false"
)


@runtime_checkable
class RowReader(Protocol):
    """A tokenizer that reads more of a row than texts, such as the images of a model that sees."""

    def read_row(self, row: Any, column: str, where: str) -> Any:
        """Return a row whose texts and conversations the tokenizer can render and tokenise.

        Args:
            row: a row in which columns are renamed and known formats converted.
            column: the column of the prompt.
            where: name of the row in errors.

        Raises:
            DataError: the row is invalid.
        """
        ...


def load_rows(
    source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, what: str, *, answers: Sequence[str] = ()
) -> list[Any]:
    """Load the rows of a source, with the columns that `data.columns` renames, and known formats converted.

    * ShareGPT: lists of {from, value} become messages. The column `conversations` is a conversation, or, beside
      `chosen` and `rejected` or for prompts, the prompt.
    * Alpaca: `instruction` and `input` become the prompt: a message of the user if the tokenizer has a chat template,
      otherwise a text with the headings of Alpaca.
    * With `data.as_messages`, texts of prompts become messages of the user, and texts of answers the assistant's.

    Args:
        source: any source of `load_source`.
        tokenizer: the policy's tokenizer.
        data: the options.
        what: the option that holds the source, for errors.
        answers: the columns that hold answers to the prompt; none if the rows are prompts.

    Raises:
        DataError: the source cannot be read, no row has a renamed column, a row of a known format is malformed, or
            `data.as_messages` meets a text that is neither prompt nor answer, or a message shows an image that the
            tokenizer would leave out.
    """
    rows = load_source(source, what)
    needed = [name for name in data.columns if answers or name == data.prompt_column]
    rows = read_types(rename_columns(rows, data.columns, what, needed=needed), data.column_types, what)
    is_chat = bool(tokenizer.chat_template)
    rows = [_read(row, data.prompt_column, answers, f"{what}[{i}]", is_chat=is_chat) for i, row in enumerate(rows)]
    if data.as_messages:
        rows = [_as_messages(row, data.prompt_column, answers, f"{what}[{i}]") for i, row in enumerate(rows)]
    if isinstance(tokenizer, RowReader):
        return [tokenizer.read_row(row, data.prompt_column, f"{what}[{i}]") for i, row in enumerate(rows)]
    for i, row in enumerate(rows):
        _refuse_images(row, data.prompt_column, answers, f"{what}[{i}]")
    return rows


def _refuse_images(row: Any, column: str, answers: Sequence[str], where: str) -> None:
    """Refuse a conversation that shows images to a tokenizer of texts, whose template may leave them out unnoticed.

    Only columns that become tokens count: the prompt and its answers, or `messages` in place of answers.
    """
    read: list[Any] = [row]
    if isinstance(row, Mapping):
        given = [name for name in answers if row.get(name) is not None] or (["messages"] if answers else [])
        read = [row.get(name) for name in (column, *given)]
    for value in read:
        for message in value if is_conversation(value) else ():
            if shows_image(message):
                raise DataError(
                    f"{where}: a message ({shorten(message['role'])}) shows an image, which this model does not read: "
                    "take a vision-language model with model.architecture=vision_language, or leave the image out"
                )


def rename_columns(rows: list[Any], columns: Mapping[str, str], what: str, *, needed: Sequence[str]) -> list[Any]:
    """Return rows in which the column `columns[name]` is called `name`; a row may lack it.

    Raises:
        DataError: all rows lack it, and `name` is among `needed`.
    """
    if not columns:
        return rows
    found = dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row)
    for name in needed:
        if columns[name] not in found:
            raise DataError(
                f"{what}: no row has the column {columns[name]!r}, which data.columns names for '{name}' (columns: "
                f"{', '.join(map(repr, found)) or 'none'})"
            )
    names = {theirs: ours for ours, theirs in columns.items()}
    return [rename(row, names) for row in rows]


def refuse_empty(row: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    """Raise the error of a row that has one of `keys` without a value, such as an empty cell of a CSV file.

    Raises:
        DataError: the value of a key is null, or NaN, which pandas writes into empty cells.
    """
    for key in keys:
        value = row.get(key, "")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise DataError(
                f"{where}[{key!r}]: is empty (null, or an empty cell of a table); fill it in, or remove the row"
            )


def _read(row: Any, column: str, answers: Sequence[str], where: str, *, is_chat: bool) -> Any:
    if not isinstance(row, Mapping):
        return read_sharegpt(row, where) if _is_sharegpt(row) else row
    made = dict(row)
    for key in ("conversations", "messages", column, *answers):
        if _is_sharegpt(row.get(key)):
            made[key] = read_sharegpt(row[key], f"{where}[{key!r}]")
    if made.get("conversations") is not None and made.get("messages") is None and made.get(column) is None:
        return made | _read_conversations(made, column, answers, where)
    if isinstance(made.get("instruction"), str) and made.get(column) is None and made.get("messages") is None:
        return made | _read_alpaca(made, column, answers, is_chat=is_chat)
    return made


def _is_sharegpt(value: Any) -> bool:
    if isinstance(value, Mapping):
        return "from" in value
    return isinstance(value, (list, tuple)) and any(isinstance(each, Mapping) and "from" in each for each in value)


def read_sharegpt(value: Any, where: str) -> list[dict[str, Any]]:
    """Return a conversation of {from, value}, or one such message, as {role, content} messages.

    Raises:
        DataError: a message has another form, or an unknown speaker.
    """
    messages = []
    for i, each in enumerate([value] if isinstance(value, Mapping) else value):
        if not isinstance(each, Mapping) or not isinstance(each.get("value"), str):
            raise DataError(f"{where}[{i}]: is {shorten(each)}; a message of ShareGPT is {{from, value}}, with texts")
        speaker = str(each.get("from"))
        if speaker not in SPEAKERS:
            raise DataError(f"{where}[{i}]: 'from' is {shorten(speaker)}; known speakers are {', '.join(SPEAKERS)}")
        messages.append({"role": SPEAKERS[speaker], "content": each["value"]})
    return messages


def _read_conversations(
    row: Mapping[str, Any], column: str, answers: Sequence[str], where: str
) -> dict[str, list[Mapping[str, Any]]]:
    messages = row["conversations"]
    refuse_empty(row, ("conversations",), where)
    if not is_conversation(messages):
        raise DataError(
            f"{where}['conversations']: is {shorten(messages)} ({type(messages).__name__}); it must be a list of "
            "{from, value} or {role, content} messages"
        )
    if isinstance(row.get("system"), str) and row["system"]:
        messages = [{"role": "system", "content": row["system"]}, *messages]
    if answers and not all(is_conversation(row.get(key)) for key in ANSWERS):
        return {"messages": messages}
    return {column: messages[:-1] if not answers and messages[-1]["role"] == "assistant" else messages}


def _read_alpaca(row: Mapping[str, Any], column: str, answers: Sequence[str], *, is_chat: bool) -> dict[str, Any]:
    system, asked, more = (str(row.get(key) or "") for key in ("system", "instruction", "input"))
    if is_chat:
        texts = {"system": system, "user": f"{asked}\n\n{more}" if more else asked}
        made: dict[str, Any] = {column: [{"role": role, "content": text} for role, text in texts.items() if text]}
        said = {key: row[key] for key in answers if isinstance(row.get(key), str)}
        return made | {key: [{"role": "assistant", "content": text}] for key, text in said.items()}
    sections = {"Instruction": asked, "Input": more}
    parts = [system, *(f"### {title}:\n{text}" for title, text in sections.items() if text), "### Response:\n"]
    return {column: "\n\n".join(part for part in parts if part)}


def _as_messages(row: Any, column: str, answers: Sequence[str], where: str) -> Any:
    """Return a row whose texts are messages; conversations stay as they are."""
    if isinstance(row, Mapping):
        if isinstance(row.get("text"), str) and row.get(column) is None and row.get("messages") is None:
            raise DataError(f"{where}: {_NO_ROLE}")
        roles = {column: "user"} | dict.fromkeys(answers, "assistant")
        texts = {key: (role, row[key]) for key, role in roles.items() if isinstance(row.get(key), str)}
        return {**row} | {key: [{"role": role, "content": text}] for key, (role, text) in texts.items()}
    if isinstance(row, str):
        if answers:
            raise DataError(f"{where}: {_NO_ROLE}")
        return [{"role": "user", "content": row}]
    if answers and isinstance(row, (list, tuple)) and all(isinstance(each, str) for each in row):
        return [{"role": "assistant" if k % 2 else "user", "content": text} for k, text in enumerate(row)]
    return row
