"""The completions, rollouts and grids of images that a report shows, in at most so many bytes.

Also in this file: text of models as a page shows it: as it looks, with only those characters escaped that could
deceive a reader.
"""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import attrs

from rlcore.loggers import display_row, turns_of
from rlcore.safe_text import visible
from rlcore_report.run_files import Row, count_rows, open_regular, read_rows

_JOINERS = "\u200c\u200d"
_MARKS = "\u200e\u200f\u061c"


def readable(text: object) -> str:
    r"""Return text for a page.

    Kept are line breaks, tabs, spaces of every width, joiners between characters of scripts that join or between
    pictures, and marks of direction beside text from right to left. Escaped are other control and format characters,
    such as overrides of the direction, zero-width spaces, joiners within Latin words, and lone surrogates.
    """
    whole = str(text)
    if whole.isascii() and whole.isprintable():
        return whole
    return "".join(
        c if c.isprintable() or _is_harmless(whole, i) else c.encode("unicode_escape").decode()
        for i, c in enumerate(whole)
    )


def _is_harmless(text: str, i: int) -> bool:
    character = text[i]
    if character in "\n\t" or unicodedata.category(character) == "Zs":
        return True
    before, after = text[i - 1 : i], text[i + 1 : i + 2]
    if character in _JOINERS:
        return _joins(before) and (_joins(after) or character == "\u200d")
    return character in _MARKS and (_is_from_the_right(before) or _is_from_the_right(after))


def _joins(character: str) -> bool:
    """Return whether a character is a picture, or of a script whose letters change beside a joiner."""
    if not character or character.isascii():
        return False
    category = unicodedata.category(character)
    if category in ("So", "Sk", "Mn", "Mc"):
        return True
    return category in ("Lo", "Lm") and unicodedata.bidirectional(character) in ("AL", "L", "NSM")


def _is_from_the_right(character: str) -> bool:
    return character != "" and unicodedata.bidirectional(character) in ("R", "AL", "AN")


MAX_STEPS, MAX_ROWS = 24, 64
"""Steps of one file on a page, the first and the last among them, and rows of each."""
MAX_CHARS = 4000
"""Characters of one text."""
MAX_TOTAL = 3_000_000
"""Characters of all texts of one file."""
MAX_IMAGE_BYTES = 6_000_000
MAX_TEXT = 100_000
"""Characters of a text of an observer."""
_TEXTS = ("prompt", "output", "messages", "transcript", "columns", "step", "sampling", "ended", "group", "length")


@attrs.frozen
class ShownRow:
    """A row of completions.jsonl or rollouts.jsonl, ready for the page: characters that could deceive are escaped."""

    step: int
    prompt: str
    messages: list[tuple[str, str]]
    output: str
    turns: list[tuple[str, str]]
    numbers: dict[str, float]
    ended: bool | None
    group: int | None
    sampling: str
    columns: str


@attrs.frozen
class ShownRows:
    """The rows of a file that a page shows.

    Attributes:
        rows: in the order of the file.
        num_steps: steps that the file has.
        num_rows: rows that the file has.
    """

    rows: list[ShownRow]
    num_steps: int
    num_rows: int


def read_samples(file: Path) -> ShownRows:
    """Return the first and the last step of a file with the rows of some steps between them.

    The file is read twice, so that only the rows of the page are in memory.
    """
    counts = count_rows(file)
    steps = sorted(counts)
    last = len(steps) - 1
    chosen = {steps[round(i * last / (MAX_STEPS - 1))] for i in range(MAX_STEPS)} if steps else set()
    rows: list[ShownRow] = []
    room, taken = dict.fromkeys(chosen, MAX_TOTAL // max(1, len(chosen))), dict.fromkeys(chosen, 0)
    for row in read_rows(file, wanted=chosen.__contains__):
        step = row["step"]
        if taken[step] < MAX_ROWS and room[step] > 0:
            sample = _shown_row(row)
            taken[step] += 1
            room[step] -= (
                len(sample.prompt)
                + len(sample.output)
                + sum(len(text) for _, text in (*sample.messages, *sample.turns))
            )
            rows.append(sample)
    return ShownRows(rows, len(steps), sum(counts.values()))


def prompts_by_step(rows: Sequence[ShownRow]) -> list[tuple[str, ...]]:
    """Return the prompts of each step, in their order."""
    found: dict[int, list[str]] = {}
    for row in rows:
        found.setdefault(row.step, []).append(row.prompt)
    return list(map(tuple, found.values()))


def _shown_row(row: Row) -> ShownRow:
    numbers = {
        visible(name): value
        for name, value in row.items()
        if name not in _TEXTS and isinstance(value, int | float) and not isinstance(value, bool)
    }
    ended, group = row.get("ended"), row.get("group")
    if isinstance(row.get("length"), int):
        numbers["length"] = row["length"]
    columns = row.get("columns")
    return ShownRow(
        step=row["step"],
        prompt=_shown(row.get("prompt", ""), end=True),
        messages=_turns(row.get("messages")),
        output=_shown(display_row(row).get("output", "")),
        turns=_turns(row.get("transcript")),
        numbers=numbers,
        ended=ended if isinstance(ended, bool) else None,
        group=group if isinstance(group, int) else None,
        sampling=_shown(row.get("sampling") or ""),
        columns=_shown(", ".join(f"{k}: {v}" for k, v in columns.items()) if isinstance(columns, Mapping) else ""),
    )


def _turns(messages: object) -> list[tuple[str, str]]:
    """Return roles and texts; a turn that was rewarded has its reward beside the role."""
    rewards = (
        [each.get("reward") for each in messages if isinstance(each, Mapping)] if isinstance(messages, list) else []
    )
    return [
        (_shown(f"{role} ({reward:+.4g})" if isinstance(reward, int | float) else role), _shown(text))
        for (role, text), reward in zip(turns_of(messages), rewards, strict=True)
    ]


def _shown(value: object, *, end: bool = False) -> str:
    """Return a text without deceiving characters and of at most MAX_CHARS characters, of its end if `end`."""
    text = readable(value)
    if len(text) <= MAX_CHARS:
        return text
    return f"…{text[-MAX_CHARS:]}" if end else f"{text[:MAX_CHARS]}…"


def read_images(folder: Path) -> list[tuple[str, str]]:
    """Return grids of images as names and data URLs: the first, the last, and others as long as there is room."""
    files = sorted(folder.glob("*.png"))
    kept: dict[Path, str] = {}
    room = MAX_IMAGE_BYTES
    for file in _outside_in(files):
        try:
            with open_regular(file) as image:
                content = image.read(room + 1)
        except OSError:
            continue
        if len(content) <= room:
            room -= len(content)
            kept[file] = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return [(file.stem, kept[file]) for file in files if file in kept]


def read_texts(folder: Path) -> list[tuple[str, str]]:
    """Return the texts that observers wrote for the report, as names and contents: each `.txt` file of a folder."""
    found = []
    for file in sorted(folder.glob("*.txt")):
        with suppress(OSError), open_regular(file) as content:
            found.append((file.stem, content.read(4 * MAX_TEXT).decode("utf-8", "replace")[:MAX_TEXT]))
    return found


def _outside_in(files: Sequence[Path]) -> Iterable[Path]:
    """Return the last file, the first, and then those between them at growing density."""
    last = len(files) - 1
    places = dict.fromkeys([last, 0]) if files else {}
    parts = 2
    while len(places) < len(files) and parts <= 2 * len(files):
        places |= dict.fromkeys(round(i * last / parts) for i in range(parts + 1))
        parts *= 2
    return [files[i] for i in places]
