"""Tables of sampled completions on a terminal."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rlcore.safe_text import visible
from rlcore_report.lines import OUTPUT_CHARS, PROMPT_CHARS
from rlcore_report.tables import MAX_CELLS, scores_first, short_name, show_cell

HEAD_WIDTH = 10
"""Width at which the names of columns of numbers are broken, so that the texts beside them keep theirs."""
PROMPT_LINES = 4
TEXT_COLUMNS = ("sampling", "end")
"""Columns of text, shown if a row has them."""
_ROLE = re.compile(r"[a-z]{1,12}: ")


def make_table(rows: Sequence[Mapping[str, Any]], *, title: str, whole: bool = False) -> Table:
    """Return a table of prompts, outputs and scores.

    Args:
        rows: rows of completions.jsonl or rollouts.jsonl.
        title: title above the table.
        whole: show complete texts; else the end of the prompt's last lines, and the beginning of the output.
    """
    present, words, numbers = _columns(rows)
    table = Table(title=Text(title), title_justify="left")
    if "step" in present:
        table.add_column("step", justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold", ratio=1)
    table.add_column("output", overflow="fold", ratio=2)
    for key in words:
        table.add_column(key)
    for key in numbers:
        table.add_column(Text(_break_name(visible(short_name(key)))), justify="right", no_wrap=True)
    for row in rows:
        prompt, output = visible(row.get("prompt", "")), visible(row.get("output", ""))
        if not whole:
            output = output if len(output) <= OUTPUT_CHARS else output[:OUTPUT_CHARS] + "…"
        steps = [show_cell(row.get("step"))] if "step" in present else []
        cells: list[str | Text] = [
            *(Text(visible(row.get(key, ""))) for key in words),
            *(show_cell(row.get(key)) for key in numbers),
        ]
        shown = Text(prompt, style="dim") if whole else _LineEnds(prompt)
        table.add_row(*steps, shown, Text(output), *cells)
    return table


def _columns(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, None], list[str], list[str]]:
    """Return the columns of rows beside prompt and output: all, those of text, and those of numbers."""
    present = dict.fromkeys(
        key for row in rows for key, value in row.items() if key in TEXT_COLUMNS or show_cell(value)
    )
    words = [key for key in present if key in TEXT_COLUMNS]
    return present, words, scores_first(key for key in present if key not in ("step", *words))[:MAX_CELLS]


def room_for_texts(rows: Sequence[Mapping[str, Any]], width: int) -> int:
    """Return the columns of a terminal that a table of the rows leaves to prompts and outputs."""
    present, words, numbers = _columns(rows)
    taken = 7  # the frame of both texts
    for key in [*(["step"] if "step" in present else []), *words, *numbers]:
        head = _break_name(visible(short_name(key))) if key in numbers else key
        cells = (str(row.get(key, "")) if key in words else show_cell(row.get(key)) for row in rows)
        taken += 3 + max(cell_len(text) for text in (*head.split("\n"), *cells))
    return width - taken


def stacked(row: Mapping[str, Any], *, whole: bool = False) -> list[RenderableType]:
    """Return a row for a narrow terminal: its numbers in a line, and below them the prompt and the output."""
    _, words, numbers = _columns([row])
    facts = [*(["step"] if "step" in row else []), *words, *numbers]
    line = "  ".join(
        f"{visible(short_name(key))} {visible(row[key]) if key in words else show_cell(row[key])}" for key in facts
    )
    prompt, output = visible(row.get("prompt", "")), visible(row.get("output", ""))
    output = output if whole or len(output) <= OUTPUT_CHARS else output[:OUTPUT_CHARS] + "…"
    shown = Text(prompt, style="dim") if whole else _LineEnds(prompt)
    return [Text(f"\n{line}", style="bold"), Padding(shown, (0, 0, 0, 2)), Padding(Text(output), (0, 0, 0, 2))]


def _break_name(name: str) -> str:
    """Break a long name of a metric into lines, after its separators."""
    lines = [""]
    for part in re.findall(r"[^_/@=]*[_/@=]|[^_/@=]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > HEAD_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


class _LineEnds:
    """The last lines of a text, of each the end, in the width that is available, since all prompts may begin alike.

    The role in front of a message stays.
    """

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        self._lines = lines if len(lines) <= PROMPT_LINES else ["…", *lines[-PROMPT_LINES:]]
        self._width = max(2, *(min(cell_len(line), PROMPT_CHARS + 1) for line in self._lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(min(options.max_width, self._width), 2)
        yield Text("\n".join(_line_end(line, width) for line in self._lines), style="dim", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(2, self._width).with_maximum(options.max_width)


def _line_end(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    begun = _ROLE.match(line)
    role = begun[0] if begun and 2 * len(begun[0]) < width else ""
    return f"{role}…{set_cell_size(line[::-1], width - 1 - len(role))[::-1]}"
