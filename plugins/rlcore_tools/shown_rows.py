"""What a row becomes: its tokens, those in the loss, the prompt it is sampled from, and what the template drops.

Also in this file: rows and lengths on a terminal, in a pipe, in a report and as JSON.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from rlcore.config import evolve
from rlcore.errors import DataError
from rlcore.loggers.console import make_console
from rlcore.safe_text import shorten, visible
from rlcore.settings import DataConfig
from rlcore.types import Message, Prompt, Sample, is_conversation, sequences_of
from rlcore_transformers.data.chat import SYSTEM_ROLES
from rlcore_transformers.data.messages import is_trained
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.rows import ANSWERS, load_rows
from rlcore_transformers.data.samples import OUTPUT_KEYS
from rlcore_transformers.data.tokens import decode

IGNORED = -100
"""Label of a token without a verdict, which `torch.nn.functional.cross_entropy` ignores."""


@attrs.frozen
class TokenRow:
    """One sequence of a row.

    Attributes:
        title: which sequence of its row it is; empty if the row has one.
        texts: the text of each token.
        trained: whether each token is in the loss.
        verdicts: for an answer in steps, the label of each token, None for those without.
        sampling_prompt: the texts of the tokens from which the policy is sampled for the first trained token; None if
            the row does not tell.
        is_same_prompt: whether these are the tokens before the first trained one.
        is_truncated: whether the row was longer.
    """

    title: str
    texts: list[str]
    trained: list[bool]
    verdicts: list[int | None] = attrs.field(factory=list)
    sampling_prompt: list[str] | None = None
    is_same_prompt: bool = True
    is_truncated: bool = False


@attrs.frozen
class PreviewRow:
    """A row of a source: its sequences, its plain values, the roles of its messages, and what was dropped of them."""

    name: str
    sequences: list[TokenRow]
    values: dict[str, Any] = attrs.field(factory=dict)
    roles: list[str] = attrs.field(factory=list)
    dropped: list[str] = attrs.field(factory=list)


@attrs.frozen
class LengthSummary:
    """Lengths of all sequences of a source in tokens.

    Attributes:
        rows: number of rows.
        shortest: length of the shortest sequence.
        median: of the lengths.
        p95: 95th percentile of the lengths.
        longest: length of the longest sequence.
        trained: tokens in the loss.
        tokens: all tokens.
        truncated: sequences that are truncated.
        cut: how many are truncated by which limit, or of prompts have its length, so that they are truncated or fit.
        context: length of the model's context; 0 if unknown.
    """

    rows: int
    shortest: int
    median: float
    p95: int
    longest: int
    trained: int
    tokens: int
    truncated: int
    cut: dict[str, int]
    context: int


@attrs.frozen
class Shown:
    """The first rows of a source, and the lengths of all."""

    name: str
    rows: list[PreviewRow]
    lengths: LengthSummary


def show_rows(
    name: str, rows: Sequence[object], source: object, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *,
    context: int = 0, num_rows: int = 4,
) -> Shown:  # fmt: skip
    """Return the first rows of a source, and the lengths of all.

    Args:
        name: the option that holds the source.
        rows: what a pipeline returned.
        source: what it read; None if the rows as the user wrote them are not to be read again.
        tokenizer: the tokenizer.
        data: the options.
        context: length of the model's context in tokens; 0 if unknown.
        num_rows: number of rows to show.
    """
    raw = _raw_rows(source, name, tokenizer, data) if source is not None else []
    written = list(_written(raw, rows, data))
    shown = [
        _show(f"{name}[{i}]", row, written[i] if i < len(written) else None, tokenizer, data)
        for i, row in enumerate(rows[:num_rows])
    ]
    return Shown(name, shown, _lengths(rows, data, context))


def _raw_rows(source: object, name: str, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> list[object]:
    answers = () if name.endswith("prompts") else (*OUTPUT_KEYS, *ANSWERS)
    try:
        return load_rows(source, tokenizer, data, name, answers=answers, names_unread=False)
    except DataError:  # a pipeline of another package may read another form
        return []


@attrs.frozen
class _Written:
    """A row as the user wrote it: what a policy is sampled from, its messages, and variables of the chat template."""

    prompt: Any
    messages: Sequence[Message] = ()
    variables: Mapping[str, Any] = attrs.field(factory=dict)


def _written(raw: Sequence[object], rows: Sequence[object], data: DataConfig) -> Iterator[_Written | None]:
    """Yield for each tokenised row what the user wrote of it; nothing if the rows cannot be matched."""
    found = [part for row in raw for part in _parts(row, data)]
    if len(found) == len(rows):
        yield from found


def _parts(row: Any, data: DataConfig) -> list[_Written | None]:
    if is_conversation(row):
        return _turns(row, 0, data, {})
    if isinstance(row, list | tuple) and row and isinstance(row[0], str):
        return [_Written(row[0])]
    if not isinstance(row, Mapping):
        return [None]
    variables = {key: row[key] for key in ("tools", "chat_template_kwargs") if row.get(key) is not None}
    if is_conversation(row.get("messages")):
        return _turns(row["messages"], 0, data, variables)
    prompt: Any = row.get(data.prompt_column)
    output: Any = next((row[key] for key in OUTPUT_KEYS if row.get(key) is not None), None)
    if is_conversation(prompt) and is_conversation(output) and "label" not in row:
        return _turns([*prompt, *output], len(prompt), data, variables)
    answers: list[Any] = [row[key] for key in (*ANSWERS, "completion") if is_conversation(row.get(key))]
    messages = [*(prompt if is_conversation(prompt) else ()), *(message for each in answers for message in each)]
    return [_Written(prompt, messages, variables)]


def _turns(
    messages: Sequence[Mapping[str, object]], first: int, data: DataConfig, variables: Mapping[str, object]
) -> list[_Written | None]:
    turns = [i for i, message in enumerate(messages) if i >= first and is_trained(message, "")]
    if data.turns == "each":
        return [_Written(messages[:i] or None, messages[: i + 1], variables) for i in turns]
    return [_Written(messages[: turns[0]] or None if turns else None, messages, variables)]


def _show(
    name: str, row: Any, written: _Written | None, tokenizer: PreTrainedTokenizerBase, data: DataConfig
) -> PreviewRow:
    if isinstance(row, Prompt):
        texts = _texts(tokenizer, row.tokens)
        sequence = TokenRow("", texts, [False] * len(texts))
        messages = row.messages or ()
        values = {key: value for key, value in row.columns.items() if value is not None}
        return PreviewRow(
            name, [sequence], values, _roles(messages), _dropped(messages, "".join(_whole(tokenizer, row.tokens)))
        )
    parts, plain = _samples_and_values(row)
    verdicts = plain.pop("labels", None)
    sampled = None if written is None else _sampled_from(written, tokenizer, data)
    sequences = [
        _show_sequence(title if len(parts) > 1 else "", sample, verdicts, sampled, tokenizer)
        for title, sample in parts.items()
    ]
    text = "".join(_whole(tokenizer, sample.tokens) for sample in parts.values())
    messages = () if written is None else written.messages
    values = {key: value for key, value in plain.items() if value not in (None, False) or key == "label"}
    return PreviewRow(name, sequences, values, _roles(messages), _dropped(messages, text))


def _samples_and_values(row: Any) -> tuple[dict[str, Sample], dict[str, Any]]:
    """Return the samples of a row, numbered where a field has several, and its other values, by their names."""
    values: dict[str, Any] = {"": row}
    if not isinstance(row, Sample | tuple | list):
        values = {field.name: getattr(row, field.name) for field in attrs.fields(type(row))}
    parts: dict[str, Sample] = {}
    for name in [name for name, value in values.items() if isinstance(value, Sample | tuple | list)]:
        found = sequences_of(values[name])
        parts |= {name if len(found) == 1 else f"{name}[{i}]": sample for i, sample in enumerate(found)}
        if found:
            del values[name]
    return parts, values


def _show_sequence(
    title: str, sample: Sample, verdicts: Sequence[int] | None, sampled: Sequence[int] | None,
    tokenizer: PreTrainedTokenizerBase,
) -> TokenRow:  # fmt: skip
    start = sample.action_mask.index(True) if True in sample.action_mask else len(sample.tokens)
    return TokenRow(
        title, _texts(tokenizer, sample.tokens), list(sample.action_mask),
        [None if label == IGNORED else label for label in verdicts or ()],
        None if sampled is None else _texts(tokenizer, sampled),
        is_same_prompt=sampled is None or list(sample.tokens[:start]) == list(sampled),
        is_truncated=not (sample.ended and sample.has_whole_prompt),
    )  # fmt: skip


def _sampled_from(written: _Written, tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> Sequence[int] | None:
    if not written.prompt:
        return None
    row = {**written.variables, data.prompt_column: written.prompt}
    try:
        (prompt,) = build_prompts([row], tokenizer, _without_renaming(data), max_length=0)
    except DataError:
        return None
    return prompt.tokens


def _without_renaming(data: DataConfig) -> DataConfig:
    """Return the options for rows whose columns are renamed already."""
    return evolve(data, columns={}, as_messages=False)


def _texts(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> list[str]:
    return decode(tokenizer, [[token] for token in tokens], skip_special_tokens=False)


def _whole(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> str:
    (text,) = decode(tokenizer, [tokens], skip_special_tokens=False) or [""]
    return text


def _roles(messages: Sequence[Mapping[str, object]]) -> list[str]:
    return [str(message["role"]) for message in messages]


def _dropped(messages: Sequence[Mapping[str, object]], text: str) -> list[str]:
    """Return the texts of messages, with their names, that a rendering lacks, but for white space."""
    there, found = "".join(text.split()), []
    for i, message in enumerate(messages):
        for key in ("content", "reasoning_content", "reasoning", "thinking"):
            value = message.get(key)
            if isinstance(value, str) and "".join(value.split()) not in there:
                kind = "system prompt" if message["role"] in SYSTEM_ROLES else f"'{key}'"
                found.append(f"message {i} ({message['role']}), {kind}: {value}")
    return found


def _lengths(rows: Sequence[Any], data: DataConfig, context: int) -> LengthSummary:
    if rows and isinstance(rows[0], Prompt):
        sizes, trained = [len(row.tokens) for row in rows], 0
        ends, starts = 0, sum(size == data.max_prompt_tokens for size in sizes)  # those that just fit included
        truncated, start = starts, f"data.max_prompt_tokens = {data.max_prompt_tokens}, or just fit"
    else:
        found = [sample for row in rows for sample in sequences_of(row)]
        sizes, trained = (
            [len(sample.tokens) for sample in found],
            sum(sample.action_mask.count(True) for sample in found),
        )
        ends, starts = (sum(not whole for whole in each) for each in (
            [sample.ended for sample in found], [sample.has_whole_prompt for sample in found],
        ))  # fmt: skip
        start = f"data.max_prompt_tokens = {data.max_prompt_tokens}"
        truncated = sum(not (sample.ended and sample.has_whole_prompt) for sample in found)
    sizes = sorted(sizes) or [0]
    last = f"data.max_sample_tokens = {data.max_sample_tokens}" if data.max_sample_tokens else "the model's context"
    cut = {last: ends, start: starts}
    return LengthSummary(
        len(rows), sizes[0], statistics.median(sizes), sizes[-(-95 * len(sizes) // 100) - 1], sizes[-1], trained,
        sum(sizes), truncated, {limit: count for limit, count in cut.items() if count}, context,
    )  # fmt: skip


SCHEMA = 1
TRAINED, BEGIN, END, BETWEEN = "bold green", "⟦", "⟧", "·"
LONGEST = 300
"""Characters of a dropped text or of a column that are shown."""


def print_sources(sources: Sequence[Shown]) -> None:
    """Print the rows and lengths of sources."""
    console = make_console()
    for source in sources:
        for text in render(source):
            console.print(text, soft_wrap=True)


def print_json(sources: Sequence[Shown]) -> None:
    """Print the rows and lengths of sources as one JSON document."""
    document = {"schema": SCHEMA, "sources": [attrs.asdict(source) for source in sources]}
    sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")


def render(source: Shown) -> list[Text]:
    """Return the lines of a source: its lengths, what the marks mean, and its rows."""
    found = source.lengths
    noun = "row" if found.rows == 1 else "rows"
    lines = [Text(f"{source.name}: {found.rows} {noun}", style="bold"), Text(lengths_line(found))]
    if found.trained:
        lines.append(
            Text.assemble(
                "trained: ", (f"{BEGIN}in these brackets{END}", TRAINED), f"; {BETWEEN} is between two tokens"
            )
        )
    for row in source.rows:
        lines += [Text(""), *_row(row)]
    return [*lines, Text("")]


def lengths_line(found: LengthSummary) -> str:
    """Return the lengths of a source in one line."""
    share = f"; {found.trained} of {found.tokens} tokens are trained" if found.trained else ""
    context = f"; the model's context has {found.context}" if found.context else ""
    cut = ", ".join(f"{count} by {limit}" for limit, count in found.cut.items())
    return (
        f"tokens: {found.shortest} to {found.longest}, median {found.median:g}, 95 % have at most {found.p95}{context}"
        f"{share}; truncated: {found.truncated}{f' ({cut})' if cut else ''}"
    )


def _row(row: PreviewRow) -> list[Text]:
    lines = [Text(row.name + (f" ({', '.join(row.roles)})" if row.roles else ""), style="bold")]
    for sequence in row.sequences:
        num = f"{sum(sequence.trained)} of {len(sequence.texts)} tokens trained" if any(sequence.trained) else ""
        state = [each for each in (sequence.title, num or f"{len(sequence.texts)} tokens") if each]
        lines.append(Text(", ".join(state) + (", truncated" if sequence.is_truncated else ""), style="dim"))
        lines.append(_tokens(sequence))
        lines += _sampled(sequence)
    for key, value in row.values.items():
        lines.append(Text(f"{visible(key)}: {shorten(value, LONGEST)}", style="dim"))
    lines += [Text(f"not rendered: {shorten(text, LONGEST)}", style="yellow") for text in row.dropped]
    return lines


def _sampled(sequence: TokenRow) -> list[Text]:
    if sequence.sampling_prompt is None:
        return []
    if sequence.is_same_prompt:
        return [
            Text(f"sampled from the same {len(sequence.sampling_prompt)} tokens before the first trained one", "dim")
        ]
    prompt = attrs.evolve(sequence, texts=sequence.sampling_prompt, trained=[False] * len(sequence.sampling_prompt))
    return [
        Text("sampled from other tokens than those before the first trained one:", style="bold red"),
        _tokens(prompt),
    ]


def _tokens(sequence: TokenRow) -> Text:
    """Return the tokens of a sequence; lines end after line breaks, and where trained tokens begin or end."""
    text, before = Text(), False
    for k, (token, trained) in enumerate(zip(sequence.texts, sequence.trained, strict=True)):
        if trained != before:
            text.append(END if before else "", style=TRAINED)
            text.append("\n" if text.plain and not text.plain.endswith("\n") else "")
            text.append(BEGIN if trained else "", style=TRAINED)
        elif text.plain and not text.plain.endswith("\n"):
            text.append(BETWEEN, style="dim")
        shown = visible(token.replace("\n", "⏎")) or "∅"
        shown = shown if shown.strip() else "␣" * len(shown)
        text.append(shown + "\n" * token.endswith("\n"), style=TRAINED if trained else "")
        label = sequence.verdicts[k] if k < len(sequence.verdicts) else None
        text.append("" if label is None else f"({label})", style="bold")
        before = trained
    text.append(END if before else "", style=TRAINED)
    text.rstrip()
    return text


def plain_text(sources: Sequence[Shown]) -> str:
    """Return the rows and lengths of sources without colours."""
    return "\n".join(line.plain for source in sources for line in render(source))
