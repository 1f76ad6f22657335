"""Rows and lengths on a terminal, in a pipe, in a report and as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

import attrs
from rich.text import Text

from rlcore.loggers.terminal import make_console
from rlcore.safe_text import shorten, visible
from rlcore_tools.shown_rows import LengthSummary, PreviewRow, Shown, TokenRow

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
