"""Show what was sampled as a table, and numbers as a person reads them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from rich.table import Table
from rich.text import Text

MAX_CELLS = 5
"""Numbers shown of a step or of a sample."""
NUMBER_WIDTH = 9
PROMPT_CHARS, OUTPUT_CHARS = 200, 400
WORDS = ("sampling", "end")
"""What is written as it is, in rows that have it."""


def make_table(rows: Sequence[Mapping[str, Any]], *, title: str, whole: bool = False) -> Table:
    """Return a table of prompts, outputs and scores.

    Args:
        rows: as completions.jsonl and rollouts.jsonl hold them.
        title: what stands above the table.
        whole: show texts however long they are; else the end of the prompt and the beginning of the output.
    """
    present = dict.fromkeys(key for row in rows for key, value in row.items() if key in WORDS or _is_number(value))
    words = [key for key in present if key in WORDS]
    numbers = [key for key in present if key not in ("step", *words)][:MAX_CELLS]
    table = Table(title=Text(title), title_justify="left")
    if "step" in present:
        table.add_column("step", justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold", ratio=1)
    table.add_column("output", overflow="fold", ratio=2)
    for key in words:
        table.add_column(key)
    for key in numbers:
        table.add_column(short_name(key), justify="right", no_wrap=True)
    for row in rows:
        prompt, output = visible(row.get("prompt", "")), visible(row.get("output", ""))
        if not whole:
            prompt = prompt if len(prompt) <= PROMPT_CHARS else "…" + prompt[-PROMPT_CHARS:]
            output = output if len(output) <= OUTPUT_CHARS else output[:OUTPUT_CHARS] + "…"
        steps = [show_cell(row.get("step"))] if "step" in present else []
        cells = [visible(row.get(key, "")) for key in words] + [show_cell(row.get(key)) for key in numbers]
        table.add_row(*steps, Text(prompt, style="dim"), Text(output), *cells)
    return table


def short_name(key: str) -> str:
    """Shorten a key where nothing is lost: `reward/mean` to `reward`, `response/length_mean` to `length`."""
    name, at, sampling = key.partition("@")
    short = name.removesuffix("/mean").removesuffix("/total").removeprefix("response/").removesuffix("_mean")
    return short + at + sampling


def show_number(value: float) -> str:
    """Write a metric in as many letters as any other, with the digits that matter."""
    value = float(value)
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        text = f"{value:g}"
    elif 10 <= size < 1e6 and value.is_integer():
        text = f"{value:.0f}"
    elif size < 1e-3 or size >= 1e5:
        text = f"{value:.2e}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:.2f}"
    return f"{text:>{NUMBER_WIDTH}}"


def show_cell(value: Any) -> str:
    """Write a number of a table: a count as it is, anything else like the metrics, nothing for what is no number."""
    if not _is_number(value):
        return ""
    return str(value) if isinstance(value, int) else show_number(value).strip()


def visible(text: object) -> str:
    """Spell out control characters: a model may write escape sequences, and a terminal would obey them."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in str(text))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
