"""Rows of a source in the form that pipelines read: renamed columns, known formats, and texts read as messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.config.options import from_json
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Row, is_conversation
from rlcore_transformers.data.chat import SYSTEM_ROLES, apply_template, fit_messages, make_chat, template_variables
from rlcore_transformers.data.messages import (
    IMAGE_COLUMNS,
    MEDIA_COLUMNS,
    MEDIA_TYPES,
    Unread,
    has_value,
    is_sharegpt,
    media_column,
    media_part,
    read_conversation,
    source_of,
    without_arrays,
)
from rlcore_transformers.data.sources import load_source, read_types, rename

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

ANSWERS = ("chosen", "rejected")
PROMPT_KEYS = ("instruction", "conversations")
"""Keys of known formats that become the prompt."""
SYSTEM_KEYS = ("system", "system_prompt")
"""Keys of a row whose text becomes its system prompt."""
PROMPT_PARTS = (*SYSTEM_KEYS, "context", "history", "input", "instruction")
"""Keys that known formats read as parts of a prompt."""
TEMPLATE_KEYS = ("tools", "chat_template_kwargs")
"""Keys that are variables of the chat template."""
_OPENAI_ANSWERS = ("preferred_output", "non_preferred_output")
_NO_ROLE = (
    "is a text without a prompt, which data.as_messages cannot read as messages; give a prompt and an answer, or leave "
    "data.as_messages at false"
)

_SEE = "take a vision-language model with model.architecture=vision_language, or leave the image out"


@runtime_checkable
class RowReader(Protocol):
    """A tokenizer that reads more of a row than texts, such as the images of a model that sees."""

    def read_row(self, row: object, column: str, where: str) -> object:
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
    source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, what: str, *, answers: Sequence[str] = (),
    names_unread: bool = True,
) -> list[Any]:  # fmt: skip
    """Load the rows of a source, with the columns that `data.columns` renames, and known formats converted.

    * Messages have the form that chat templates read (`rlcore_transformers.data.messages.read_conversation`), also
      those that a column has as JSON.
    * ShareGPT: lists of {from, value} become messages. The column `conversations` is a conversation, or, beside
      `chosen` and `rejected` or for prompts, the prompt.
    * Alpaca and Dolly: `instruction` and `input` or `context` become the prompt: a message of the user if the tokenizer
      has a chat template, otherwise a text with the headings of Alpaca. Earlier pairs in `history` come before it.
    * Preferences of OpenAI: `input` with `messages` and `tools`, `preferred_output` and `non_preferred_output`.
    * `messages` or `conversations` beside answers that begin with the assistant's message are their prompt; with no
      answer beside them, the last message is the labelled one.
    * `system` becomes the system prompt of a conversation.
    * With `data.as_messages`, texts of prompts become messages of the user, and texts of answers the assistant's.

    What a format has read is left out of rows of answers, so that pipelines can name the keys that nothing reads
    (`name_unread`). Keys of messages, of their parts and of calls that nothing reads are named here.

    Args:
        source: any source of `load_source`.
        tokenizer: the policy's tokenizer.
        data: the options.
        what: the option that holds the source, for errors.
        answers: the columns that hold answers to the prompt; none if the rows are prompts.
        names_unread: whether to log keys that nothing reads, as for rows that have not been loaded before.

    Raises:
        DataError: the source cannot be read, no row has a renamed column, a row of a known format is malformed, or
            `data.as_messages` meets a text that is neither prompt nor answer, or a row or a message has images, videos
            or sounds that the tokenizer would leave out.
    """
    rows = load_source(source, what)
    needed = [name for name in data.columns if answers or name == data.prompt_column]
    rows = read_types(rename_columns(rows, data.columns, what, needed=needed), data.column_types, what)
    reader = _RowReader(data, answers, is_chat=bool(tokenizer.chat_template))
    rows = [reader.read(row, f"{what}[{i}]") for i, row in enumerate(rows)]
    unread = Unread(tokenizer, what)
    for i, row in enumerate(rows):
        read = _read_values(row, data.prompt_column, answers)
        for value in read if names_unread else ():
            unread.messages(i, value, _renderer(tokenizer, row, data))
        if not isinstance(tokenizer, RowReader):
            _refuse_media(row, read, f"{what}[{i}]", MEDIA_COLUMNS)
        elif isinstance(row, Mapping):
            _refuse_media(row, (), f"{what}[{i}]", [name for name in MEDIA_COLUMNS if name not in IMAGE_COLUMNS])
        _refuse_unknown_parts(read, source_of(tokenizer), f"{what}[{i}]")
    unread.warn(len(rows), "neither rlcore nor the chat template reads them")
    if names_unread and not answers:
        _name_parts(rows, reader.read_keys, tokenizer, data, what)
    if isinstance(tokenizer, RowReader):
        return [tokenizer.read_row(row, data.prompt_column, f"{what}[{i}]") for i, row in enumerate(rows)]
    return rows


def convert_prompt(row: object, data: DataConfig, where: str) -> object:
    """Return a row of prompts as `load_rows` does for a tokenizer with a chat template, which may read its messages.

    Raises:
        DataError: the row has a known format, and is malformed.
    """
    made = _RowReader(data, (), is_chat=True).read(row, where)
    return made if isinstance(made, Mapping) else {data.prompt_column: made}


def _renderer(tokenizer: PreTrainedTokenizerBase, row: object, data: DataConfig) -> Callable[[Any], str | None]:
    """Return a function that renders the messages of a row, and returns None where the template refuses them."""

    def render(messages: Any) -> str | None:
        with suppress(DataError):
            variables = template_variables(row, "") if isinstance(row, Mapping) else {}
            chat = fit_messages(tokenizer, make_chat("", messages, data, template=variables))
            return str(apply_template(tokenizer, chat))
        return None

    return render


def name_unread(
    rows: Sequence[object], read: Sequence[Collection[str]], tokenizer: PreTrainedTokenizerBase, what: str
) -> None:
    """Log a warning that names the keys of rows that nothing reads, once each, with the rows that have them.

    Args:
        rows: what `load_rows` returned.
        read: for each row the keys that the pipeline read; variables of the template count where it is a conversation.
        tokenizer: the tokenizer.
        what: the option that holds the rows.
    """
    unread, images = Unread(tokenizer, what), IMAGE_COLUMNS if isinstance(tokenizer, RowReader) else ()
    for i, (row, keys) in enumerate(zip(rows, read, strict=True)):
        if isinstance(row, Mapping):
            unread.row(i, row, {*keys, *images})
    unread.warn(len(rows), "they change nothing; data.columns renames columns to those that are read")


def _name_parts(
    rows: Sequence[object],
    read: Sequence[Collection[str]],
    tokenizer: PreTrainedTokenizerBase,
    data: DataConfig,
    what: str,
) -> None:
    """Name the columns of prompts that some format reads as a part of the prompt, in rows where none has."""
    unread = Unread(tokenizer, what)
    for i, (row, keys) in enumerate(zip(rows, read, strict=True)):
        if isinstance(row, Mapping):
            unread.row(i, row, {*keys, data.prompt_column, *(key for key in row if key not in PROMPT_PARTS)})
    unread.warn(
        len(rows),
        "they are no part of the prompts, only columns for reward functions and environments; of a prompt in messages "
        "(data.as_messages) 'system' is the system prompt",
    )


def _read_values(row: object, column: str, answers: Sequence[str]) -> list[Any]:
    """Return the values of a row that become tokens: the prompt and its answers, or `messages` in place of answers."""
    if not isinstance(row, Mapping):
        return [row]
    given = [name for name in answers if row.get(name) is not None] or (["messages"] if answers else [])
    return [row.get(name) for name in (column, *given)]


def _refuse_media(row: Any, read: Sequence[Any], where: str, columns: Sequence[str]) -> None:
    """Refuse a row that shows images, or has other media, to a tokenizer that would leave them out unnoticed."""
    if isinstance(row, Mapping) and (name := media_column(row, columns)) is not None:
        raise DataError(
            f"{where}: has the column {name!r} ({shorten(row[name], 40)}), which this model does not read: "
            + (_SEE if name in IMAGE_COLUMNS else "leave it out")
            + f"; if it is for reward functions only, rename it: data.columns={{of_rewards_{name}: {name}}}"
        )
    for value in read:
        for message in value if is_conversation(value) else ():
            kind = media_part(message) or media_column(message)
            if kind is not None:
                shown = "shows an image" if "image" in kind else f"has {kind!r}"
                raise DataError(
                    f"{where}: a message ({shorten(message['role'])}) {shown}, which this model does not read: "
                    + (_SEE if "image" in kind else "leave it out")
                )


def _refuse_unknown_parts(read: Sequence[Any], template: str, where: str) -> None:
    """Refuse parts of a content that have a type that neither rlcore nor the template knows, and so no text."""
    for value in read:
        for i, message in enumerate(value if is_conversation(value) else ()):
            content = message.get("content")
            for part in content if isinstance(content, list | tuple) else ():
                kind = part.get("type") if isinstance(part, Mapping) else None
                known = kind in (None, "text", *MEDIA_TYPES) or f"'{kind}'" in template or f'"{kind}"' in template
                if not known:
                    raise DataError(
                        f"{where}: message {i} ({message['role']}): has a part of the type {shorten(kind)}, which the "
                        "chat template does not name, so it would be left out; write texts as {type: text, text: ...}, "
                        "calls as tool_calls and their results as messages of the role tool"
                    )


def rename_columns(rows: list[object], columns: Mapping[str, str], what: str, *, needed: Sequence[str]) -> list[object]:
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


def refuse_empty(row: Mapping[str, object], keys: Sequence[str], where: str) -> None:
    """Raise the error of a row that has one of `keys` without a value, such as an empty cell of a CSV file.

    Raises:
        DataError: the value of a key is null, or NaN, which pandas writes into empty cells, or it is a conversation of
            no messages.
    """
    for key in keys:
        value = row.get(key, "")
        if value is None or (isinstance(value, float) and math.isnan(value)):
            raise DataError(
                f"{where}[{key!r}]: is empty (null, or an empty cell of a table); fill it in, or remove the row"
            )
        if key in ("messages", "conversations") and not has_value(value) and key in row:
            raise DataError(f"{where}[{key!r}]: is empty, and a conversation has at least one message; remove the row")


def refuse_messages(row: Mapping[str, object], key: str, where: str) -> None:
    """Raise the error of a row whose conversation under a key has another form.

    Raises:
        DataError: the value is no list of messages, or a message has no role.
    """
    value: Any = row.get(key)
    if not has_value(value) or is_conversation(value):
        return
    wrong = [k for k, each in enumerate(value) if not (isinstance(each, Mapping) and "role" in each)] if isinstance(
        value, list | tuple
    ) else []  # fmt: skip
    at, shown = (f"[{wrong[0]}]", value[wrong[0]]) if wrong else ("", value)
    raise DataError(
        f"{where}[{key!r}]{at}: is {shorten(shown)} ({type(shown).__name__}); "
        + (
            "a message is {role, content}"
            if wrong
            else "it must be a list of {role, content} or {from, value} messages"
        )
    )


class _RowReader:
    """Converts rows in known formats, and keeps for each the keys that became parts of prompts and messages."""

    def __init__(self, data: DataConfig, answers: Sequence[str], *, is_chat: bool) -> None:
        self.column, self.answers, self.is_chat = data.prompt_column, answers, is_chat
        self.as_messages = data.as_messages
        self.read_keys: list[set[str]] = []

    def read(self, row: object, where: str) -> Any:
        """Return a row in the form that pipelines read."""
        try:
            return self._read(row, where)
        except RecursionError:
            raise DataError(f"{where}: is nested too deep, or contains itself") from None

    def _read(self, row: Any, where: str) -> Any:
        read = set[str]()
        self.read_keys.append(read)
        if not isinstance(row, Mapping):
            made = row if isinstance(row, str) else read_conversation(row, where)
            return _as_messages(made, self.column, self.answers, where) if self.as_messages else made
        is_judged = set(ANSWERS) <= set(self.answers)
        made = self._values(_unnested(row, self.column) if is_judged else row, where)
        made |= self._judged(made, read) if is_judged and made.get(self.column) is None else {}
        if made.get("messages") is None and made.get(self.column) is None:
            if made.get("conversations") is not None:
                made |= self._conversations(made, where)
                read.add("conversations")
            elif isinstance(made.get("instruction"), str):
                made |= self._alpaca(made, read, where)
        made = _as_messages(made, self.column, self.answers, where) if self.as_messages else made
        made |= self._system(made, read)
        return {key: value for key, value in made.items() if key not in read} if self.answers else made

    def _values(self, row: Mapping[str, object], where: str) -> dict[str, Any]:
        """Return a row whose messages have the form that chat templates read."""
        made, talks = dict(row), ("conversations", "messages")
        keys = [key for key in dict.fromkeys((*talks, self.column, *self.answers)) if made.get(key) is not None]
        is_dialect = False
        for key in keys:
            is_dialect = is_dialect or is_sharegpt(made[key])
            is_text = key not in talks or key == self.column
            made[key] = read_conversation(made[key], f"{where}[{key!r}]", is_text=is_text)
        for key in ("history", "labels", "completions", *TEMPLATE_KEYS):
            made |= {key: without_arrays(made[key])} if made.get(key) is not None else {}
        if is_dialect and has_value(made.get("tools")):
            made["tools"] = list(map(_as_tool, template_variables({"tools": made["tools"]}, where)["tools"]))
        return made

    def _judged(self, row: Row, read: set[str]) -> dict[str, Any]:
        """Return the prompt and the answer of a row of answers that has both in one conversation."""
        key = next((key for key in ("messages", "conversations") if is_conversation(row.get(key))), None)
        given = [row[name] for name in self.answers if row.get(name) is not None]
        if key is None or not all(map(_is_answer, given)):
            return {}
        if given:
            read.add(key)
            return {self.column: row[key]}
        *prompt, answer = row[key]
        if self.answers[0] in ANSWERS or not prompt or answer["role"] != "assistant":
            return {}
        read.add(key)
        return {self.column: prompt, self.answers[0]: [answer]}

    def _conversations(self, row: Mapping[str, Any], where: str) -> dict[str, Any]:
        messages = row["conversations"]
        if self.answers and has_value(messages) and _are_texts(messages):
            return {"messages": messages}
        refuse_empty(row, ("conversations",), where)
        refuse_messages(row, "conversations", where)
        if self.answers and not all(is_conversation(row.get(key)) for key in ANSWERS):
            return {"messages": messages}
        return {self.column: messages[:-1] if not self.answers and messages[-1]["role"] == "assistant" else messages}

    def _alpaca(self, row: Mapping[str, Any], read: set[str], where: str) -> dict[str, Any]:
        more = next((key for key in ("input", "context") if isinstance(row.get(key), str) and row[key]), "")
        earlier = _history(row, where)
        read |= {"instruction", *([more] if more else ()), *(["history"] if earlier else ())}
        asked, said = (
            (row["instruction"], row.get(more)),
            [key for key in self.answers if isinstance(row.get(key), str)],
        )
        in_turns = (
            bool(earlier) and len(said) == 1 and not set(ANSWERS) & set(self.answers)
        )  # the history is learnt too
        read |= set(said) if in_turns else set()
        if self.is_chat:
            texts = [text for pair in earlier for text in pair] + ["\n\n".join(filter(None, asked))]
            talk = _as_turns(texts)
            answers = {key: [{"role": "assistant", "content": row[key]}] for key in said}
            return {"messages": talk + answers[said[0]]} if in_turns else {self.column: talk, **answers}
        key = _system_key(row)
        read |= {key} if key else set()
        prompts = [_headings(*pair) for pair in [*((question, "") for question, _ in earlier), asked]]
        prompts[0] = f"{row[key]}\n\n{prompts[0]}" if key else prompts[0]
        texts = [prompts[0]]
        for (_, answer), prompt in zip(earlier, prompts[1:], strict=True):
            texts += [answer, f"\n\n{prompt}"]
        return {"messages": [*texts, row[said[0]]]} if in_turns else {self.column: "".join(texts)}

    def _system(self, row: Row, read: set[str]) -> dict[str, Any]:
        """Return the conversations of a row with its system prompt, unless they have one."""
        key = _system_key(row)
        given = [name for name in self.answers if is_conversation(row.get(name))]
        if is_conversation(row.get(self.column)):
            given = [self.column] if given or not self.answers or row.get("messages") is None else ["messages"]
        elif self.answers and is_conversation(row.get("messages")):
            given = ["messages"]
        if not key or not given:
            return {}
        found = [message for name in given for message in row[name] if message["role"] in SYSTEM_ROLES]
        if any(message.get("content") != row[key] for message in found):
            return {}
        read.add(key)
        return {} if found else {name: [{"role": "system", "content": row[key]}, *row[name]] for name in given}


def _unnested(row: Mapping[str, object], column: str) -> Mapping[str, Any]:
    """Return a row of OpenAI's preferences, whose prompt and tools are within `input`, with columns of their own."""
    given = row.get("input")
    if isinstance(given, str) and given.lstrip().startswith("{"):
        with suppress(ValueError):
            given = from_json(given)
    answers = [row.get(key) for key in _OPENAI_ANSWERS]
    if not isinstance(given, Mapping) or "messages" not in given or any(answer is None for answer in answers):
        return row
    rest = {key: value for key, value in row.items() if key not in ("input", *_OPENAI_ANSWERS)}
    inner = {key: value for key, value in given.items() if key != "messages"}
    return {**rest, **inner, column: given["messages"], **dict(zip(ANSWERS, answers, strict=True))}


def _is_answer(value: Any) -> bool:
    """Return whether a value is a conversation without a prompt."""
    return is_conversation(value) and value[0]["role"] == "assistant"


def _system_key(row: Row) -> str:
    return next((key for key in SYSTEM_KEYS if isinstance(row.get(key), str) and row[key].strip()), "")


def _headings(asked: str, more: str | None) -> str:
    """Return a prompt in the form of Alpaca."""
    sections = {"Instruction": asked, "Input": more}
    return "\n\n".join([*(f"### {title}:\n{text}" for title, text in sections.items() if text), "### Response:\n"])


def _history(row: Mapping[str, object], where: str) -> list[tuple[str, str]]:
    """Return the earlier questions and answers of a row of Alpaca."""
    value: object = row.get("history")
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = from_json(value)
    if not has_value(value):
        return []
    pairs: Sequence[Any] = value if isinstance(value, list | tuple) else [None]
    if not all(isinstance(pair, list | tuple) and [*map(type, pair)] == [str, str] for pair in pairs):
        raise DataError(
            f"{where}['history']: is {shorten(value)}; beside 'instruction' it must be a list of [instruction, output] "
            "pairs; if it is no part of the prompt, rename it with data.columns"
        )
    return [(asked, said) for asked, said in pairs]


def _as_tool(schema: object) -> Any:
    """Return the schema of a tool in the form of OpenAI, which templates read, where it is that of a function alone."""
    is_bare = isinstance(schema, Mapping) and "name" in schema and "function" not in schema
    return {"type": "function", "function": schema} if is_bare else schema


def _as_messages(row: Any, column: str, answers: Sequence[str], where: str) -> Any:
    """Return a row whose texts are messages; conversations stay as they are."""
    if isinstance(row, Mapping):
        if isinstance(row.get("text"), str) and row.get(column) is None and row.get("messages") is None:
            raise DataError(f"{where}: {_NO_ROLE}")
        roles = {column: "user"} | dict.fromkeys(answers, "assistant")
        texts = {key: (role, row[key]) for key, role in roles.items() if isinstance(row.get(key), str)}
        row = {**row, "messages": _as_turns(row["messages"])} if answers and _are_texts(row.get("messages")) else row
        return {**row} | {key: [{"role": role, "content": text}] for key, (role, text) in texts.items()}
    if isinstance(row, str):
        if answers:
            raise DataError(f"{where}: {_NO_ROLE}")
        return [{"role": "user", "content": row}]
    return _as_turns(row) if answers and _are_texts(row) else row


def _are_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _as_turns(texts: Sequence[str]) -> list[dict[str, str]]:
    """Return texts of the user and the assistant, in turns, as messages."""
    return [{"role": "assistant" if k % 2 else "user", "content": text} for k, text in enumerate(texts)]
