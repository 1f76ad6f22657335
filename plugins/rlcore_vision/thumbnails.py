"""Small copies of the images that prompts of completions show, in the run's folder, for its report."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path

from rlcore.errors import DataError
from rlcore.types import Trajectories
from rlcore_vision.image_rows import MARK
from rlcore_vision.image_store import FIRST, STORES

FOLDER = "thumbnails"
"""Folder in the run's folder; a file is called as its image in prompts: `<image:4f0c21a9>` is 4f0c21a9.png."""
SIDE = 96
MAX_BYTES = 2_000_000
"""Bytes of all files of a run; images beyond them are named only."""
MAX_ROWS = 64
"""Rows of a batch of rollouts whose images are copied; a report shows as many."""
TAIL = 2**20
"""Bytes at the end of completions.jsonl that are searched for images."""


def images_of(batch: Trajectories) -> list[int]:
    """Return the numbers of the images of the first rows of a batch."""
    tokens = batch.tokens[:MAX_ROWS]
    found: list[int] = tokens[tokens >= FIRST].unique().tolist()
    return found


def copy_images(run_dir: Path, numbers: Iterable[int]) -> None:
    """Copy images, given by their numbers."""
    _copy(run_dir / FOLDER, dict.fromkeys(numbers))


def copy_of_completions(run_dir: Path) -> None:
    """Copy the images of the last completions of evaluations."""
    path = run_dir / "completions.jsonl"
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        text = file.read().decode("utf-8", errors="replace")
    _copy(run_dir / FOLDER, (int(digits, 16) for digits in dict.fromkeys(MARK.findall(text))))


def _copy(folder: Path, tokens: Iterable[int]) -> None:
    room = MAX_BYTES - sum(file.stat().st_size for file in folder.glob("*.png"))
    for token in tokens:
        file = folder / f"{token:08x}.png"
        content = b"" if file.exists() else _thumbnail(token)
        if len(content) > room:
            return
        if content:
            folder.mkdir(exist_ok=True)
            file.write_bytes(content)
            room -= len(content)


def _thumbnail(token: int) -> bytes:
    """Return an image as a small PNG; nothing if it cannot be opened any more, or would have to be downloaded."""
    store = next((each for each in STORES if token in each), None)
    if store is None or str(store[token].source).startswith(("http://", "https://")):
        return b""
    try:
        image = store.open(token)
    except DataError:
        return b""
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()
