"""The list of runs of a dashboard: what each is, how far it is, and what its reward did, read in about a millisecond.

A list must be there at once, so the files of a run are searched, not parsed. Verdicts, which need every metric, are
made by a thread meanwhile, the newest runs first, and again when a run has written something.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Condition, Lock, Thread
from typing import Any

import attrs

from rlcore.checkpoints.claim import is_locked
from rlcore.checkpoints.run_folder import MARK
from rlcore.components import describe_error
from rlcore.safe_text import visible
from rlcore_report.answer import in_one_sentence, judged
from rlcore_report.listed_run import ListedRun, head_of, listed, search
from rlcore_report.run_record import read_run
from rlcore_report.stamps import list_stamp

DEPTH = 3
"""Folders below a root in which runs are looked for, such as those of a sweep."""
HEAD_START_S = 1.0
"""Time in which a browser draws the list for the first time, before verdicts are made."""
PENDING = {"level": "pending", "name": "", "sentence": "The verdict is being made."}


@attrs.frozen
class _Judged:
    """What the thread that makes verdicts has found of a run: its figures as its own page has them, and a verdict."""

    stamp: str | None
    run: ListedRun | None
    verdict: Mapping[str, str]


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
        self._judged: dict[str, _Judged] = {}
        self._waiting: dict[str, Path] = {}
        self._lock, self._wake = Lock(), Condition()
        self._folders: dict[str, Path] = {}  # also those of runs that have been deleted since
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
        self._folders.update(found)
        return found

    def folder(self, key: str) -> Path | None:
        """Return the folder of a run, also if it has been deleted since; None if there was none of this key."""
        return self._folders.get(key) or self.folders().get(key)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run, most recently changed first; a verdict that is not made yet is `pending`."""
        rows, waiting = [], {}
        with self._lock:
            for key, folder in self.folders().items():
                stamp, changed = list_stamp(folder)
                judged_run = self._judged.get(key) or _Judged(None, None, PENDING)
                if judged_run.stamp != stamp:
                    waiting[key] = folder
                rows.append({
                    "key": key, **self._summary(key, folder, stamp), "verdict": dict(judged_run.verdict),
                    "running": is_locked(folder), "changed": changed,
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

    def _summary(self, key: str, folder: Path, stamp: str) -> dict[str, Any]:
        judged_run = self._judged.get(key)
        if judged_run is not None and judged_run.run is not None and judged_run.stamp == stamp:
            self._summaries[key] = (stamp, judged_run.run)
        elif self._summaries.get(key, (None,))[0] != stamp:
            self._summaries[key] = (stamp, search(folder))
        return attrs.asdict(self._summaries[key][1])

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
            found = _judge(folder)
            with self._lock:
                self._judged[key] = found
            time.sleep(0.001)  # requests come first


def _judge(folder: Path) -> _Judged:
    """Read a run and make its verdict; if that fails, its error is the verdict, and other runs are not affected."""
    stamp, run = list_stamp(folder)[0], None
    try:
        record = read_run(folder)
        run = listed(record)
        verdict = in_one_sentence(judged(record))
    except Exception as error:  # noqa: BLE001  the files of a run may contain anything
        verdict = {
            "level": "none", "name": "unreadable", "sentence": f"The run cannot be read: {describe_error(error)}"
        }  # fmt: skip
    return _Judged(stamp, run, {name: visible(text) for name, text in verdict.items()})


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
        if head_of(folder / "config.yaml", len(MARK)) == MARK.encode():
            yield folder
        elif depth > 1 and not entry.is_symlink():
            yield from _runs_below(folder, depth - 1)
