"""Lay out a run's folder, and go back in its files when the run does.

<root>/<name>/config.yaml        the resolved configuration; also what marks the folder as a run
<root>/<name>/metrics.jsonl      one object a line, each with its `step`
<root>/<name>/completions.jsonl  evaluation samples, likewise
<root>/<name>/rollouts.jsonl     what training sampled, likewise, as much of it as `run.rollouts` says
<root>/<name>/checkpoints/       see `rlcore.checkpoints.checkpoint`
<root>/<name>/model/             the last policy, for transformers' `from_pretrained`
<root>/<name>/profile/           where the time went, see `rlcore.profiling`
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import yaml

from rlcore.config.plain import to_plain
from rlcore.errors import ConfigError, RunExists

MARK = "# rlcore run"
NEVER, AUTO = "never", "auto"
REPLACED = ".replaced"
"""Where what a run's folder held may wait until the run that overwrites it can begin."""


@attrs.frozen
class RunDir:
    """Name the places in a run's folder.

    Attributes:
        path: the folder.
        is_continued: it holds a run that was asked to go on.
    """

    path: Path
    is_continued: bool = False

    @classmethod
    def create(
        cls, root: Path | str, name: str | None, *, overwrite: bool, resume: str = NEVER, trainer: str = "run"
    ) -> RunDir:
        """Make the folder of a run, or find the one that is to go on.

        Args:
            root: folder that holds the runs; made if absent.
            name: the folder's name; `<trainer>-YYYYmmdd-HHMMSS` where None, with `-2`, `-3`, ... while that is taken.
            overwrite: delete what the folder holds, if it is a run.
            resume: `never`, `auto` (go on with the run in the folder, if there is one), or a checkpoint's path (go on
                with the run if the checkpoint is one of its own, else begin a run in a new folder).
            trainer: names the run where `name` is None.

        Raises:
            RunExists: the folder holds a run and nothing was said about it, or holds something else.
            ConfigError: the name is no plain name, or `overwrite` would delete what `resume` needs.
        """
        if name is None:
            return cls(_make_fresh(Path(root), trainer))
        _check_name(name)
        folder = Path(root) / name
        if not folder.exists():
            folder.mkdir(parents=True)
            return cls(folder)
        if not folder.is_dir() or not (is_run(folder) or _is_free(folder, overwrite=overwrite)):
            raise RunExists(f"{folder} exists and is no run of rlcore, so it is left alone: pass another run.name")
        if not is_run(folder):
            return cls(folder)
        wanted = resume == AUTO or (resume != NEVER and Path(resume).resolve().is_relative_to(folder.resolve()))
        if wanted and overwrite:
            raise ConfigError(
                f"run.overwrite = true would delete {folder}, which run.resume = {resume} goes on with: pass one only"
            )
        if wanted:
            return cls(folder, is_continued=True)
        if not overwrite:
            raise RunExists(
                f"{folder} already holds a run: pass run.resume=auto to go on with it, run.overwrite=true to delete it "
                "and begin again, or another run.name"
            )
        _empty(folder)
        return cls(folder)

    @property
    def config(self) -> Path:
        """Return the file of the resolved configuration."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """Return the file of all metrics."""
        return self.path / "metrics.jsonl"

    @property
    def completions(self) -> Path:
        """Return the file of all evaluation samples."""
        return self.path / "completions.jsonl"

    @property
    def rollouts(self) -> Path:
        """Return the file of what training sampled."""
        return self.path / "rollouts.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """Return the folder of the last policy."""
        return self.path / "model"

    def write_config(self, config: Mapping[str, Any], plugins: Mapping[str, str]) -> None:
        """Write the resolved configuration so that it can be given to `rlcore train` again.

        Args:
            config: all options; what YAML has no word for is described in words.
            plugins: distribution → version; they go into comments, for they are no options.
        """
        lines = [f"{MARK}, written by rlcore {plugins.get('rlcore', '(unknown version)')}; it marks this folder as one"]
        lines += [f"# plugin {dist} {version}" for dist, version in sorted(plugins.items()) if dist != "rlcore"]
        plain = to_plain(config, nonfinite=lambda number: number)
        body = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
        _replace(self.config, [("\n".join(lines) + "\n" + body).encode()])

    def rewind(self, step: int | None) -> None:
        """Drop what metrics, completions and rollouts say of later steps, and a last line that was cut short.

        Args:
            step: number of steps done at the checkpoint that is resumed; None begins again, with empty files.
        """
        for file in (self.metrics, self.completions, self.rollouts):
            if file.exists():
                _replace(file, _lines_until(file, step))


def is_run(folder: Path) -> bool:
    """Tell whether `folder` holds a config.yaml that rlcore wrote."""
    try:
        with (folder / "config.yaml").open("rb") as file:
            return file.readline().startswith(MARK.encode())
    except OSError:
        return False


def _is_free(folder: Path, *, overwrite: bool) -> bool:
    """Tell whether `folder` holds nothing, or, where that may go, only a run that was set aside to be overwritten."""
    return all(overwrite and child.name == REPLACED and is_run(child) for child in folder.iterdir())


def _make_fresh(root: Path, trainer: str) -> Path:
    stem = f"{trainer.replace(':', '-')}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    _check_name(stem)
    number = 1
    while True:
        folder = root / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _check_name(name: str) -> None:
    if not name or name in {".", ".."} or any(letter in name for letter in "/\\\0"):
        raise ConfigError(f"run.name = {name!r}: must be a plain folder name; run.root says where the folder lies")


def _empty(folder: Path) -> None:
    """Delete what a run's folder holds, the file that marks it as a run last."""
    for child in sorted(folder.iterdir(), key=lambda path: path.name == "config.yaml"):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def _lines_until(file: Path, step: int | None) -> Iterator[bytes]:
    if step is None:
        return
    with file.open("rb") as lines:
        for line in lines:
            if line.endswith(b"\n") and 0 <= _step_of(line) <= step:
                yield line


def _step_of(line: bytes) -> int:
    """Return the step a line is about; -1 where it does not say."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -1
    return step if isinstance(step, int) else -1


def _replace(file: Path, parts: Iterable[bytes]) -> None:
    """Write a file beside and rename it, so that no moment shows it half written."""
    beside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with beside.open("wb") as out:
            out.writelines(parts)
            out.flush()
            os.fsync(out.fileno())
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)
