"""The list of runs of a dashboard: what each is, how far it is, and what its reward did, read in about a millisecond.

A list must be there at once, so the files of a run are searched, not parsed. Verdicts, which need every metric, are
made by a thread meanwhile, the newest runs first, and again when a run has written something.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

import attrs

from rlcore.checkpoints.claim import is_locked
from rlcore.checkpoints.run_folder import MARK, RunDir
from rlcore.errors import RLCoreError
from rlcore.safe_text import visible
from rlcore_report.answer import LOSSES, REWARDS, in_one_sentence, judged
from rlcore_report.page_data import rounded
from rlcore_report.run_record import read_run

DEPTH = 3
"""Folders below a root in which runs are looked for, such as those of a sweep."""
SEARCHED = 8_000_000
"""Bytes of metrics.jsonl that are searched; of a longer one, its beginning and its end."""
HEAD_START_S = 1.0
"""Time in which a browser draws the list for the first time, before verdicts are made."""
PENDING = {"level": "pending", "name": "", "sentence": "The verdict is being made."}


@attrs.frozen
class ListedRun:
    """What the list shows of a run without parsing its files."""

    name: str
    trainer: str
    model: str
    total: int | None
    step: int
    metric: str
    last: float | None
    best: float | None


class RunList:
    """The runs in some folders, by their keys.

    A key is the path of a run below its root. Whatever a request names is looked up among the keys, and is never part
    of a path.

    Args:
        roots: folders that contain runs.
        runs: folders of runs.
    """

    def __init__(self, roots: Sequence[Path], runs: Sequence[Path] = ()) -> None:
        self._roots, self._runs = tuple(roots), tuple(runs)
        self._summaries: dict[str, tuple[str, ListedRun]] = {}
        self._verdicts: dict[str, tuple[str, Mapping[str, str]]] = {}
        self._waiting: dict[str, Path] = {}
        self._lock, self._wake = Lock(), Condition()
        self._folders: dict[str, Path] = {}
        self._is_closed = False
        self._thread: Thread | None = None

    def folders(self) -> dict[str, Path]:
        """Return the folders of the runs by their keys, as they are now on the disk."""
        found: dict[str, Path] = {}
        for root in self._roots:
            for folder in _runs_below(root, DEPTH):
                found.setdefault(folder.relative_to(root).as_posix(), folder)
        for folder in self._runs:
            name = folder.resolve().name
            found[str(folder) if found.get(name, folder) != folder else name] = folder
        self._folders = found
        return found

    def folder(self, key: str) -> Path | None:
        """Return the folder of a run; None if there is none of this key."""
        return self._folders.get(key) or self.folders().get(key)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, most recently changed first; a verdict that is not made yet is `pending`."""
        rows, waiting = [], {}
        with self._lock:
            for key, folder in self.folders().items():
                stamp = stamp_of(folder)
                if self._summaries.get(key, ("",))[0] != stamp:
                    self._summaries[key] = (stamp, _summarize(folder))
                judged_at, verdict = self._verdicts.get(key, ("", PENDING))
                if judged_at != stamp:
                    waiting[key] = folder
                summary = attrs.asdict(self._summaries[key][1])
                rows.append({
                    "key": key, **summary, "verdict": dict(verdict), "running": is_locked(folder),
                    "changed": _last_change(folder),
                })  # fmt: skip
        rows.sort(key=lambda row: -row["changed"])
        self._judge_later({row["key"]: waiting[row["key"]] for row in rows if row["key"] in waiting})
        return rows

    def close(self) -> None:
        """End the thread that makes verdicts."""
        with self._wake:
            self._is_closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout=1.0)  # a very long run may take longer; the thread is a daemon

    def _judge_later(self, waiting: dict[str, Path]) -> None:
        with self._wake:
            self._waiting = waiting
            if waiting and self._thread is None and not self._is_closed:
                self._thread = Thread(target=self._judge, name="verdicts", daemon=True)
                self._thread.start()
            self._wake.notify()

    def _judge(self) -> None:
        time.sleep(HEAD_START_S)
        while True:
            with self._wake:
                while not self._waiting and not self._is_closed:
                    self._wake.wait()
                if self._is_closed:
                    return
                key = next(iter(self._waiting))
                folder = self._waiting.pop(key)
            stamp = stamp_of(folder)
            try:
                verdict = in_one_sentence(judged(read_run(folder)))
            except (OSError, RLCoreError, ValueError) as error:
                verdict = {"level": "none", "name": "unreadable", "sentence": f"The run cannot be read: {error}"}
            with self._lock:
                self._verdicts[key] = (stamp, {name: visible(text) for name, text in verdict.items()})
            time.sleep(0.001)  # requests come first


def stamp_of(folder: Path) -> str:
    """Return a text that changes when the files of a run change."""
    run = RunDir(folder)
    found = []
    for file in (run.metrics, run.completions, run.rollouts, run.config, folder / "report"):
        with suppress(OSError):
            status = file.stat()
            found.append(f"{status.st_size}.{status.st_mtime_ns}")
    return ".".join(found)


def _last_change(folder: Path) -> float:
    times = [0.0]
    for file in (RunDir(folder).metrics, RunDir(folder).config):
        with suppress(OSError):
            times.append(file.stat().st_mtime)
    return max(times)


def _runs_below(root: Path, depth: int) -> Iterator[Path]:
    """Yield the folders of runs, without looking into them; links to folders are followed to one level."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError:  # another user's, or gone
        return
    for entry in entries:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        folder = root / entry.name
        if _head(folder / "config.yaml", len(MARK)) == MARK.encode():
            yield folder
        elif depth > 1 and not entry.is_symlink():
            yield from _runs_below(folder, depth - 1)


def _head(file: Path, size: int) -> bytes:
    with suppress(OSError), file.open("rb") as content:
        return content.read(size)
    return b""


def _summarize(folder: Path) -> ListedRun:
    run = RunDir(folder)
    config = _head(run.config, 200_000).decode("utf-8", "replace")
    content = _searched(run.metrics)
    headline = re.search(r"^# headline (.+)$", config, re.MULTILINE)
    metric, values = "", list[float]()
    names = [*REWARDS, *(each for name in (headline[1].split() if headline else ()) for each in (f"eval/{name}", name))]
    for name in dict.fromkeys([*names, *LOSSES]):
        values = _values(content, name)
        if values:
            metric = name
            break
    last = re.compile(rb'\{"step": (\d{1,15})[,}]').match(content, content.rfind(b'\n{"step": ') + 1)
    total = _option(config, "run", "steps")
    best = min if "loss" in metric else max
    return ListedRun(
        name=visible(folder.name),
        trainer=visible(_option(config, "trainer", "name") or "unknown"),
        model=visible(_option(config, "model", "path") or "unknown"),
        total=int(total) if total.isdecimal() and len(total) < 16 else None,
        step=int(last[1]) if last else 0,
        metric=visible(metric),
        last=rounded(values[-1]) if values else None,
        best=rounded(best(values)) if values else None,
    )


def _searched(file: Path) -> bytes:
    """Return the complete lines of a file, of a long one those at its beginning and its end."""
    with suppress(OSError), file.open("rb") as lines:
        size = os.fstat(lines.fileno()).st_size
        if size <= SEARCHED:
            content = lines.read()
        else:
            begin = lines.read(SEARCHED // 2)
            lines.seek(size - SEARCHED // 2)
            content = begin[: begin.rfind(b"\n") + 1] + lines.read().partition(b"\n")[2]
        return content[: content.rfind(b"\n") + 1]
    return b""


def _values(content: bytes, name: str) -> list[float]:
    """Return the values of a metric. Within a text of JSON, a quote beside its name would have a backslash."""
    pattern = re.compile(b'"' + re.escape(name.encode()) + rb'": (-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)[,}]')
    return [
        float(found[1]) for found in pattern.finditer(content) if content[found.start() - 1 : found.start()] != b"\\"
    ]


def _option(config: str, section: str, name: str) -> str:
    """Return a plain option of a configuration as every run writes it; empty if it is missing or null."""
    found = re.search(rf"^{section}:\n(?:  .*\n)*?  {name}: (.+)$", config, re.MULTILINE)
    text = found[1].strip() if found else ""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return "" if text in ("null", "~") else text
