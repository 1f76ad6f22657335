"""The file of all judgements of a run, to which each is appended and synced before the page hears of it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore.errors import DataError
from rlcore_human.judgement import Judgement

NAME = "judgements.jsonl"
TAKES_BACK = "takes_back"
"""Key of a line by which a person takes back an earlier judgement, whose id it holds."""


def read_judgements(folder: Path) -> list[Judgement]:
    """Return the judgements in a folder, in their order.

    An incomplete last line is ignored, and so are a judgement that was written again because its first sync failed, and
    one that was taken back.

    Raises:
        DataError: a line is no judgement.
    """
    path = folder / NAME
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")  # whatever follows the last line break is incomplete
    judgements: dict[str, Judgement] = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            if isinstance(row, dict) and TAKES_BACK in row:
                judgements.pop(row[TAKES_BACK], None)
                continue
            judgement = Judgement.from_row(row)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}; repair or remove the line") from error
        judgements.setdefault(judgement.id, judgement)
    return list(judgements.values())


def append_judgements(folder: Path, judgements: Sequence[Judgement]) -> None:
    """Append judgements, and return when they are on the disk."""
    append_rows(folder, [each.to_row() for each in judgements])


def append_rows(folder: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append lines, and return when they are on the disk."""
    path = folder / NAME
    is_new = not path.exists()
    with path.open("ab+") as file:
        end = file.tell()  # opened at its end
        file.seek(max(0, end - 1))
        if file.read(1) not in {b"", b"\n"}:  # the process died while it wrote a line
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        file.write(b"".join(json.dumps(row, default=str).encode() + b"\n" for row in rows))
        file.flush()
        os.fsync(file.fileno())
    if is_new:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
