"""Laws of loggers: they accept what a run logs, including NaN, changing keys and any text, and release their files."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import sqlite3
import struct
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from rlcore.settings import TrainConfig
from rlcore_testing.law import Subject, law, require
from rlcore_testing.rig.isolate import FILES, threads_left, undisturbed
from rlcore_testing.rig.logger_runs import (
    CHAT,
    MARKS,
    ROWS,
    RUN,
    USUAL,
    accepting,
    build,
    closing,
    log_usually,
    opened,
    spend,
)

if TYPE_CHECKING:
    from rlcore.protocols import RunView

LOGGERS = "loggers"
GRACE_S = 120.0
"""Seconds after `close` in which threads may end, and in which a process of a library may write what it was given."""

OF_LIBRARIES = (".cache", ".config", ".local", "AppData", "Library")
"""Folders of the user's home in which libraries keep what is of no run."""


@law(LOGGERS)
def it_uses_only_the_run_view(subject: Subject) -> None:
    """A logger uses only the attributes of the run that `rlcore.protocols.RunView` declares."""
    with opened(subject) as (logger, run), contextlib.suppress(AttributeError):
        log_usually(logger, run)
        logger.close(None)
    names = ", ".join(run.undeclared)
    require(not names, f"it uses {names} of the run; use the attributes of rlcore.protocols.RunView only")


@law(LOGGERS)
def nan_and_infinity_are_accepted(subject: Subject) -> None:
    """Metrics may be NaN, infinite, integers, tiny or huge: the log matters most when a run diverges."""
    for value in (math.nan, math.inf, -math.inf, 0, -0.0, 10**30, 1e-320, 1.8e308):
        with closing(subject) as (logger, _), accepting(f"metrics with {value}"):
            logger.metrics(1, {"loss": value, "kl/mean": 0.5})


@law(LOGGERS)
def keys_may_come_and_go(subject: Subject) -> None:
    """The metrics of a step may have new keys, fewer keys or none, and an evaluation may follow at the same step."""
    with closing(subject) as (logger, run):
        for step, metrics in enumerate(
            (USUAL, {**USUAL, "new/key": 1.0}, {"new/key": 2.0}, {}, {"eval/reward/mean": 1.0}, {"a b/ü@t=0.5": 0.0}), 1
        ):
            run.step = step
            with accepting(f"the keys {list(metrics)}"):
                logger.metrics(step, dict(metrics))
            with accepting("an evaluation at the same step"):
                logger.metrics(step, {"eval/loss": 0.5})


@law(LOGGERS)
def completions_of_any_kind_are_accepted(subject: Subject) -> None:
    """Completions may have any text, messages and missing scores; their columns may change; the list may be empty."""
    with closing(subject) as (logger, _):
        for step, rows in enumerate(
            (ROWS, [], [{"prompt": "a", "output": "b"}], [{**ROWS[0], "sampling": "t=0.5"}], [CHAT], ROWS)
        ):
            with accepting(f"{len(rows)} completions"):
                logger.completions(step, copy.deepcopy(rows))


@law(LOGGERS)
def arguments_are_not_changed(subject: Subject) -> None:
    """A logger does not change the metrics and rows it receives: other loggers receive the same objects.

    Nor does it change the global random state or the root logger.
    """
    metrics, rows = dict(USUAL), [dict(row) for row in ROWS[::2]]
    with undisturbed("it", but=[FILES]), closing(subject) as (logger, run):
        with accepting("metrics"):
            logger.metrics(1, metrics)
        with accepting("completions"):
            logger.completions(1, rows)
        require(metrics == USUAL, f"it changes the metrics it receives to {metrics}; copy them first")
        require(rows == list(ROWS[::2]), f"it changes the completions it receives to {rows}; copy them first")
        require(run.config == TrainConfig() and run.step == 0, "it changes the run; only read from it")


@law(LOGGERS)
def it_writes_in_the_runs_folder_only(subject: Subject) -> None:
    """A logger writes files into `run.dir`, and not into the working folder, beside `run.dir` or into the user's home.

    Files and folders elsewhere are those that its attribute `writes_outside(config, run)` returns; the laws on closing
    and resuming apply to these too.
    """
    before = Path.cwd()
    with (
        tempfile.TemporaryDirectory(prefix="rlcore-law-") as elsewhere,
        tempfile.TemporaryDirectory(prefix="rlcore-law-") as home,
        mock.patch.dict(os.environ, HOME=home, USERPROFILE=home),
    ):
        os.chdir(elsewhere)
        try:
            with opened(subject) as (logger, run):
                log_usually(logger, run)
                logger.close(None)
                folders = {"into the working folder": Path(elsewhere), "beside run.dir": run.dir.parent}
                folders["into the home folder"] = Path(home)
                declared = [*_outside(subject, run), *((Path(home) / name).resolve() for name in OF_LIBRARIES)]
                written = [
                    f"{path.name} {where}" for where in folders for path in _undeclared(folders[where], declared)
                ]
        finally:
            os.chdir(before)
    require(
        not written,
        f"it writes {', '.join(written)}; write into run.dir, or declare it in the attribute `writes_outside`",
    )


@law(LOGGERS)
def it_closes_however_the_run_ended(subject: Subject) -> None:
    """`close` works after a completed run, an error or an interruption, also if nothing was logged."""
    for error in (None, RuntimeError("a test error of\nseveral lines"), KeyboardInterrupt()):
        for used in (False, True):
            with opened(subject) as (logger, run):
                if used:
                    log_usually(logger, run)
                with accepting(f"close({error!r}) {'after some steps' if used else 'at once'}"):
                    logger.close(error)


@law(LOGGERS)
def close_releases_files_and_threads(subject: Subject) -> None:
    """`close` closes all files that the logger writes and ends the logger's threads, also after the logger crashed.

    Threads that a library starts once per process, with the first logger, may remain.
    """
    with closing(subject) as (logger, run):
        log_usually(logger, run)
    for crash in (False, True):
        threads = set(threading.enumerate())
        with opened(subject) as (logger, run):
            spend(logger, run, crash=crash)
            after = " after a crash" if crash else ""
            open_files = _open_files([run.dir.parent, *_outside(subject, run)])
            left = threads_left(threads, GRACE_S)
            require(not open_files, f"it leaves {', '.join(open_files)} open{after}; close files in close()")
            require(not left, f"it leaves the threads {', '.join(left)} running{after}; end them in close()")


@law(LOGGERS)
def a_resumed_run_keeps_earlier_logs(subject: Subject) -> None:
    """Metrics of steps and evaluations are in a logger's files, and a second one, as in a resumed run, keeps them.

    A logger whose metrics are in a service, or in a database that several runs share, sets `keeps_elsewhere = True`.
    """
    from rlcore.protocols import LoggerTraits

    elsewhere = LoggerTraits(subject.it.target()).keeps_elsewhere
    for closed in (True, False):
        with opened(subject) as (first, run):
            log_usually(first, run)
            if closed:
                first.close(None)
            places = [run.dir.parent, *_outside(subject, run)]
            marks = _marks(places) if elsewhere or not closed else _marks_once_written(places)
            before = _sizes(places)
            unread = ", ".join(what for mark, what in MARKS.items() if mark not in marks)
            require(
                elsewhere or not (closed and before and unread),
                f"it leaves files, but the metrics of {unread} are in none, as text, as binary numbers or in a "
                "database; write what is logged, and raise what fails",
            )
            second = build(subject, run)
            with accepting("the second logger"):
                for step in (3, 4):
                    second.metrics(step, dict(USUAL))
                second.close(None)
            after = _sizes(places)
            lost = [path.name for path, size in before.items() if after.get(path, -1) < size]
            how = "closed" if closed else "not closed, as in a killed process,"
            require(
                not lost, f"{', '.join(lost)} is smaller or missing after a run whose logger was {how} resumes; append"
            )
            gone = ", ".join(MARKS[mark] for mark in marks if mark not in _marks(places))
            require(not gone, f"metrics of {gone} are gone after a run whose logger was {how} resumes; append")
            if not closed:
                with accepting("closing the first logger late"):
                    first.close(None)


def _outside(subject: Subject, run: RunView) -> list[Path]:
    """Return the files and folders outside `run.dir` that a logger declares."""
    from rlcore.protocols import LoggerTraits

    declared = LoggerTraits(subject.it.target()).writes_outside
    return [] if declared is None else [Path(path).resolve() for path in declared(subject.config(), run)]


def _undeclared(folder: Path, declared: Sequence[Path]) -> list[Path]:
    """Return the entries of a folder, other than the run's, that contain no declared path and are in none."""
    entries = [path.resolve() for path in sorted(folder.iterdir()) if path.name != RUN]
    return [
        one for one in entries if not any(one.is_relative_to(path) or path.is_relative_to(one) for path in declared)
    ]


def _open_files(places: Sequence[Path]) -> list[str]:
    """Return the names of open files at or under `places`; empty on systems without /proc."""
    handles = Path("/proc/self/fd")
    names = []
    for handle in handles.iterdir() if handles.is_dir() else ():
        with contextlib.suppress(OSError):
            target = handle.readlink()
            names += [target.name] if any(target.is_relative_to(place.resolve()) for place in places) else []
    return names


def _sizes(places: Sequence[Path]) -> Mapping[Path, int]:
    return {path: path.stat().st_size for path in _files(places)}


def _marks(places: Sequence[Path]) -> list[str]:
    """Return the marks that files at or under `places` contain as text, as a binary number, or in a database."""
    contents = [_rows_of(path) or path.read_bytes() for path in _files(places)]
    forms = {
        mark: [mark.encode(), *(struct.pack(form, float(mark)) for form in ("<d", ">d", "<f", ">f"))] for mark in MARKS
    }
    return [mark for mark in MARKS if any(form in content for form in forms[mark] for content in contents)]


def _marks_once_written(places: Sequence[Path]) -> list[str]:
    """Return the marks at or under `places` once all are there, or after GRACE_S those that are.

    A library such as wandb writes files in a process of its own, which may be late on a busy machine. Loggers that
    write no files are not waited for.
    """
    deadline = time.monotonic() + GRACE_S
    while len(marks := _marks(places)) < len(MARKS) and _sizes(places) and time.monotonic() < deadline:
        time.sleep(0.05)
    return marks


def _rows_of(path: Path) -> bytes:
    """Return the rows of a database of SQLite as text; empty if the file is none. Its bytes may hold deleted rows."""
    with path.open("rb") as file:
        if file.read(16) != b"SQLite format 3\0":
            return b""
    with contextlib.closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = [row for name in tables for row in database.execute(f'SELECT * FROM "{name}"')]  # noqa: S608
    return b"\n".join(each if isinstance(each, bytes) else str(each).encode() for row in rows for each in row)


def _files(places: Sequence[Path]) -> list[Path]:
    return [path for place in places for path in (place, *sorted(place.rglob("*"))) if path.is_file()]
