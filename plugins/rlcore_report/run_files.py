"""Runs on disk: their folders, and the rows of their JSON Lines files, which may still grow.

Also in this file: texts that change when the files of a run change, so that a page is made anew only then.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from rlcore.checkpoints.run_folder import RunDir, is_locked, is_run
from rlcore.config.options import from_json
from rlcore.errors import CheckpointError, NoRollouts, io_remedy

ROOT = Path("runs")
Row = dict[str, Any]
LARGEST_FILE, LARGEST_LINE = 256_000_000, 16_000_000
"""Bytes of a file and of a line that are read: of a larger file its beginning and its end, of a longer line nothing."""
_STEP = re.compile(rb'\{"step": (\d{1,18}),.*\}\n', re.DOTALL)


def find_run(name: str) -> Path:
    """Return the folder of a run, given its path or its name under ./runs.

    Raises:
        NoRollouts: no such run exists.
    """
    for folder in (Path(name), ROOT / name):
        if is_run(folder):
            return folder
    near = difflib.get_close_matches(name, [folder.name for folder in runs_in(ROOT)], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "`rlcore rollouts` lists the runs under ./runs"
    if nested := runs_in(Path(name)):
        hint = f"{name} contains runs, the latest is {nested[0]}: name one of them"
    raise NoRollouts(f"no run in {' or '.join(dict.fromkeys([name, str(ROOT / name)]))}; {hint}")


def runs_in(root: Path) -> list[Path]:
    """Return the folders of the runs in `root`, most recently changed first."""
    folders = [folder for folder in root.glob("*") if _is_readable_run(folder)]
    return sorted(folders, key=last_change, reverse=True)


def holds_runs(folder: Path) -> bool:
    """Return whether a folder is no run but may contain some, as that of a sweep does."""
    return (folder.is_dir() and not _is_readable_run(folder) and folder.name != "") or folder == Path()


def last_change(folder: Path) -> float:
    """Return the time of the last change of a run's metrics or configuration."""
    files = (RunDir(folder).metrics, RunDir(folder).config)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def read_rows(file: Path, *, wanted: Callable[[int], bool] = lambda _: True) -> Iterator[Row]:
    """Yield the rows of a file that may still grow; incomplete and damaged lines are skipped.

    Args:
        file: one JSON object a line, each with its step in front, as every run writes them.
        wanted: whether rows of a step are yielded; lines of others are not parsed.
    """
    lines = lines_of(file)
    while True:
        try:
            line = next(lines, None)
        except OSError as error:
            raise NoRollouts(f"{file}: cannot be read: {error.strerror}; {io_remedy(error)}") from error
        if line is None:
            return
        if (begun := _STEP.match(line)) and not wanted(int(begun[1])):
            continue
        try:
            row = from_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int) and wanted(row["step"]):
            yield row


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a regular file that may still grow; of a very large one, its beginning and its end.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """
    try:
        content = open_regular(file)
    except FileNotFoundError:
        return
    with content:
        size = os.fstat(content.fileno()).st_size
        parts = [(0, size)] if size <= LARGEST_FILE else [(0, LARGEST_FILE // 2), (size - LARGEST_FILE // 2, size)]
        for begin, end in parts:
            content.seek(begin)
            if begin:
                content.readline(LARGEST_LINE)  # its beginning is missing
            while content.tell() < end and (line := content.readline(LARGEST_LINE)):
                if line.endswith(b"\n"):
                    yield line


def head_of(file: Path, size: int) -> bytes:
    """Return the first bytes of a regular file; none of what is no file, such as a FIFO, or cannot be read."""
    with suppress(OSError), open_regular(file) as content:
        return content.read(size)
    return b""


def read_whole(file: Path, limit: int = 5_000_000) -> str:
    """Return the text of a small regular file.

    Raises:
        OSError: it cannot be read, is larger, or is no regular file.
    """
    with open_regular(file) as content:
        found = content.read(limit + 1)
    if len(found) > limit:
        raise OSError(errno.EFBIG, f"is larger than {limit / 1e6:.0f} MB", str(file))
    return found.decode("utf-8", "replace")


def open_regular(file: Path) -> BinaryIO:
    """Open a regular file to read. Opening a FIFO or a device would wait for whoever writes to it.

    Raises:
        OSError: there is no such file, it is of another kind, or it cannot be read.
    """
    handle = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(errno.EINVAL, "is no regular file", str(file))


def count_rows(file: Path) -> dict[int, int]:
    """Return how many rows of each step a file has, mostly without parsing them."""
    counts: dict[int, int] = {}

    def counted(step: int) -> bool:
        counts[step] = counts.get(step, 0) + 1
        return False

    for _ in read_rows(file, wanted=counted):
        pass
    return counts


def _is_readable_run(folder: Path) -> bool:
    """Return whether `folder` is a run; one that only another user may read is passed over."""
    with suppress(CheckpointError):
        return is_run(folder)
    return False


SOME_TIME_S = 300
"""Seconds after which the page of a run that writes nothing is made anew, since that it is silent is shown too."""


def list_stamp(folder: Path) -> tuple[str, float]:
    """Return a text that changes when the files change that the list reads, and the time of the run's last step."""
    path, found, changed = str(folder), [], 0.0
    for name in ("config.yaml", "metrics.jsonl", "rollouts.jsonl", "end.json"):
        try:
            status = os.stat(f"{path}/{name}")  # noqa: PTH116  a third of the time of pathlib, for a thousand runs
        except OSError:
            continue
        found.append(f"{name[0]}{status.st_size}.{status.st_mtime_ns}")
        changed = changed if name[0] == "r" else max(changed, status.st_mtime)
    return "".join(found), changed


def page_stamp(folder: Path) -> str:
    """Return a text that changes when anything changes that the page of a run shows."""
    run = RunDir(folder)
    files = [run.completions, run.report, run.model, *(folder / "report", folder / "images", run.checkpoints)]
    for place in files[-3:]:
        with suppress(OSError):
            files += sorted(place.iterdir())
    files += [checkpoint / "manifest.json" for checkpoint in run.checkpoints.glob("[0-9]*")]
    stamp, changed = list_stamp(folder)
    quiet = int((time.time() - changed) / SOME_TIME_S)
    found = [stamp, f"running {quiet}" if is_locked(folder) else ""]
    for file in files:
        with suppress(OSError):
            status = file.stat()
            found.append(f"{file.name}{status.st_size}.{status.st_mtime_ns}")
    return hashlib.sha256(".".join(found).encode(errors="surrogateescape")).hexdigest()[:24]
