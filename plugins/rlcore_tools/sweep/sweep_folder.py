"""The folder of a sweep.

sweep.yaml           the sweep: shared options and the section `sweep`; its first line marks the folder as one
study.db             the study of Optuna, in SQLite
trials/00003/        the run's folder of a trial
trials/00003.yaml    its configuration, with which its process was started
trials/00003.log     what its process printed
trials/00003.from/   the checkpoint of another trial from which it went on, if it did
trials/00003.next/   the checkpoint from which another trial goes on in its place, until that one begins
best.yaml            the best configuration so far
report.html          the report
.lock                locked by the one process that runs the sweep
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from filelock import FileLock, Timeout

from rlcore.config import dump_yaml, load_yaml
from rlcore.errors import ConfigError, RunExists, RunInUse
from rlcore.safe_text import redact, show
from rlcore_tools.sweep.sweep_options import FREE, SECTION, Sweep, record_of

MARK = "# rlcore sweep"
LOCK = ".lock"
MOST_SHOWN = 5
"""Differences between two sweeps that an error lists."""


@attrs.frozen
class SweepFolder:
    """Paths in a sweep's folder."""

    path: Path

    @property
    def record(self) -> Path:
        """Return the file of the sweep's options."""
        return self.path / "sweep.yaml"

    @property
    def study(self) -> Path:
        """Return the file of the study."""
        return self.path / "study.db"

    @property
    def trials(self) -> Path:
        """Return the folder of the trials, in which each has its run."""
        return self.path / "trials"

    @property
    def best(self) -> Path:
        """Return the file of the best configuration."""
        return self.path / "best.yaml"

    @property
    def report(self) -> Path:
        """Return the file of the report."""
        return self.path / "report.html"

    def run(self, number: int) -> Path:
        """Return the folder of a trial's run."""
        return self.trials / name_of(number)

    def log(self, number: int) -> Path:
        """Return the file with what a trial's process printed."""
        return self.trials / f"{name_of(number)}.log"

    def configuration(self, number: int) -> Path:
        """Return the file of a trial's configuration."""
        return self.trials / f"{name_of(number)}.yaml"

    def inherited(self, number: int) -> Path:
        """Return the folder with the checkpoint of another trial from which a trial goes on."""
        return self.trials / f"{name_of(number)}.from"

    def kept(self, number: int) -> Path:
        """Return the folder with the checkpoint from which another trial will go on in a trial's place."""
        return self.trials / f"{name_of(number)}.next"

    def is_sweep(self) -> bool:
        """Return whether the folder contains a sweep."""
        try:
            with self.record.open("rb") as file:
                return file.readline().startswith(MARK.encode())
        except OSError:
            return False

    def contents(self) -> set[str]:
        """Return the names of files and folders in the folder, the lock excepted.

        Raises:
            RunExists: they are not those of a sweep.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunExists(f"{self.path} is no folder: choose another with --folder")
        found = {child.name for child in self.path.iterdir()} - {LOCK} if self.path.is_dir() else set()
        if found and not self.is_sweep():
            raise RunExists(
                f"{self.path} exists and is no sweep, so it is left unchanged: choose another with --folder"
            )
        return found

    def drop_weights(self, number: int) -> None:
        """Delete the checkpoints and models of a trial; its metrics, rollouts and report stay."""
        for name in ("checkpoints", "model", "start"):
            shutil.rmtree(self.run(number) / name, ignore_errors=True)
        shutil.rmtree(self.inherited(number), ignore_errors=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from running the sweep.

        Raises:
            RunExists: the folder has other contents than a sweep.
            RunInUse: another process runs it.
        """
        self.contents()
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock((self.path / LOCK).resolve(), timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunInUse(f"{self.path}: another process runs this sweep: wait until it ends, or stop it") from None
        try:
            yield
        finally:
            lock.release()


def name_of(number: int) -> str:
    """Return the name of a trial's run."""
    return f"{number:05d}"


def checkpoint_of(run: Path) -> int | None:
    """Return the step of the newest checkpoint of a run; None if it has none."""
    steps = [int(file.parent.name) for file in run.glob("checkpoints/*/manifest.json") if file.parent.name.isdigit()]
    return max(steps, default=None)


def claim(sweep: Sweep, *, overwrite: bool = False) -> SweepFolder:
    """Return the folder of a sweep, new or with the same sweep in it; called with the folder's lock.

    Args:
        sweep: the sweep.
        overwrite: delete the sweep that is in the folder.

    Raises:
        RunExists: the folder has another sweep, or trials of this one without their study.
    """
    folder = SweepFolder(sweep.folder)
    contents = folder.contents()
    if contents and overwrite:
        folder.record.unlink()
        for name in sorted(contents - {folder.record.name}):
            child = sweep.folder / name
            shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()
    elif contents:
        _compare(folder, sweep)
        if not folder.study.exists() and any(folder.trials.glob("*")):
            raise RunExists(
                f"{folder.study} is missing, and {folder.trials} has trials of which it was the record: restore the "
                "file, choose another folder with --folder, or begin again with --overwrite"
            )
    folder.trials.mkdir(exist_ok=True)
    lines = [f"{MARK}; it marks this folder as one. Continue it with the command that began it."]
    write_yaml(folder.record, redact(record_of(sweep)), lines)
    return folder


def _compare(folder: SweepFolder, sweep: Sweep) -> None:
    before, now = _leaves(load_yaml(folder.record)), _leaves(redact(record_of(sweep)))
    differing = [
        f"{path} was {_shown(before, path)}, is {_shown(now, path)}"
        for path in dict.fromkeys([*before, *now])
        if before.get(path, _NOTHING) != now.get(path, _NOTHING) and path not in {f"{SECTION}.{name}" for name in FREE}
    ]
    if differing:
        more = f"; and {len(differing) - MOST_SHOWN} more" if len(differing) > MOST_SHOWN else ""
        raise RunExists(
            f"{folder.path} holds another sweep: {'; '.join(differing[:MOST_SHOWN])}{more}. Continue it with the "
            "options that it began with, choose another folder with --folder, or delete it and begin again with "
            "--overwrite"
        )


_NOTHING = object()


def _shown(leaves: Mapping[str, object], path: str) -> str:
    return show(leaves[path]) if path in leaves else "not set"


def _leaves(values: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, object] = {}
    for key, value in values.items():
        path = f"{prefix}{key}"
        leaves |= _leaves(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def read_record(folder: Path) -> dict[str, Any]:
    """Return the options of the sweep in a folder.

    Raises:
        ConfigError: there is none.
    """
    place = SweepFolder(folder)
    if not place.is_sweep():
        inner = sorted(child.name for child in folder.glob("*") if SweepFolder(child).is_sweep())
        hint = f"; it contains the sweeps {', '.join(inner)}: name one of them" if inner else ""
        raise ConfigError(f"{folder} holds no sweep: there is no {place.record.name} of `rlcore sweep`{hint}")
    values = load_yaml(place.record)
    if not isinstance(values.get(SECTION), Mapping):
        raise ConfigError(f"{place.record} has no section '{SECTION}': it was changed or cut off; restore the file")
    return values


def write_yaml(file: Path, values: Mapping[str, object], comments: list[str]) -> None:
    """Write a configuration; one with secrets can be read by this user alone. A reader never finds half of it."""
    text = "".join(f"{line}\n" for line in comments) + dump_yaml(values)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    has_secret = redact(values) != values
    with open(temporary, "w", encoding="utf-8", opener=_private if has_secret else None) as out:
        out.write(text)
    temporary.replace(file)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
