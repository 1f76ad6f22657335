"""The layout of a run's folder, its creation, and the truncation of its logs when a run is resumed.

<root>/<name>/config.yaml        the resolved configuration; its first line marks the folder as a run
<root>/<name>/metrics.jsonl      metrics, one object per line with its `step`
<root>/<name>/completions.jsonl  evaluation samples, in the same format
<root>/<name>/rollouts.jsonl     training samples, in the same format, as many as `run.rollouts` selects
<root>/<name>/checkpoints/       see `rlcore.checkpoints.checkpoint`
<root>/<name>/model/             the last policy, for transformers' `from_pretrained`
<root>/<name>/profile/           timings of the run's phases, see `rlcore.profiling`
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
"""Subfolder with the previous contents of a run's folder until the run that overwrites it is built."""


@attrs.frozen
class RunDir:
    """Paths in a run's folder.

    Attributes:
        path: the folder.
        is_continued: whether the folder contains a run that is resumed.
    """

    path: Path
    is_continued: bool = False

    @classmethod
    def create(
        cls, root: Path | str, name: str | None, *, overwrite: bool, resume: str = NEVER, trainer: str = "run"
    ) -> RunDir:
        """Create the folder of a run, or find the folder of the run to resume.

        Args:
            root: parent folder of the runs; created if missing.
            name: the folder's name; None means `<trainer>-YYYYmmdd-HHMMSS`, with `-2`, `-3`, ... if that exists.
            overwrite: delete the contents of the folder if it is a run.
            resume: `never`, `auto` (resume the run in the folder, if there is one), or a checkpoint's path (resume the
                run if the checkpoint is in its folder, else start a run in a new folder).
            trainer: prefix of the name if `name` is None.

        Raises:
            RunExists: the folder contains a run, and neither `resume` nor `overwrite` applies; or it contains other
                files.
            ConfigError: the name is not a plain folder name, or `overwrite` would delete the checkpoint to resume.
        """
        if name is None:
            return cls(_make_fresh(Path(root), trainer))
        _check_name(name)
        folder = Path(root) / name
        if not folder.exists():
            folder.mkdir(parents=True)
            return cls(folder)
        if not folder.is_dir() or not (is_run(folder) or _is_free(folder, overwrite=overwrite)):
            raise RunExists(f"{folder} exists and is no run of rlcore, so it is left unchanged: pass another run.name")
        if not is_run(folder):
            return cls(folder)
        resumes = resume == AUTO or (resume != NEVER and Path(resume).resolve().is_relative_to(folder.resolve()))
        if resumes and overwrite:
            raise ConfigError(
                f"run.overwrite = true would delete {folder}, which run.resume = {resume} continues: pass only one"
            )
        if resumes:
            return cls(folder, is_continued=True)
        if not overwrite:
            raise RunExists(
                f"{folder} already holds a run: pass run.resume=auto to continue it, run.overwrite=true to delete it "
                "and start again, or another run.name"
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
        """Return the file of the training samples."""
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
        """Write the resolved configuration as a file that `rlcore train` accepts.

        Args:
            config: all options; values that YAML cannot represent are replaced by a description.
            plugins: distribution → version; written as comments, because they are not options.
        """
        lines = [f"{MARK}, written by rlcore {plugins.get('rlcore', '(unknown version)')}; it marks this folder as one"]
        lines += [f"# plugin {dist} {version}" for dist, version in sorted(plugins.items()) if dist != "rlcore"]
        plain = to_plain(config, nonfinite=lambda number: number)
        body = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=120)
        _replace(self.config, [("\n".join(lines) + "\n" + body).encode()])

    def rewind(self, step: int | None) -> None:
        """Remove metrics, completions and rollouts of later steps, and an incomplete last line.

        Args:
            step: number of finished steps at the resumed checkpoint; None removes all lines.
        """
        for file in (self.metrics, self.completions, self.rollouts):
            if file.exists():
                _replace(file, _lines_until(file, step))


def is_run(folder: Path) -> bool:
    """Return whether `folder` contains a config.yaml written by rlcore."""
    try:
        with (folder / "config.yaml").open("rb") as file:
            return file.readline().startswith(MARK.encode())
    except OSError:
        return False


def _is_free(folder: Path, *, overwrite: bool) -> bool:
    """Return whether `folder` is empty or, with `overwrite`, contains only a run that was set aside."""
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
        raise ConfigError(f"run.name = {name!r}: must be a plain folder name; run.root sets its parent folder")


def _empty(folder: Path) -> None:
    """Delete the contents of a run's folder; config.yaml, which marks it as a run, is deleted last."""
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
    """Return the step of a line; -1 if it has none."""
    try:
        step = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return -1
    return step if isinstance(step, int) else -1


def _replace(file: Path, parts: Iterable[bytes]) -> None:
    """Replace a file atomically: write a temporary file in the same folder and rename it."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as out:
            out.writelines(parts)
            out.flush()
            os.fsync(out.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
