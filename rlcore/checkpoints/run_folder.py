"""The layout of a run's folder, its creation, and the truncation of its logs when a run is resumed.

<root>/<name>/config.yaml        the resolved configuration; its first line marks the folder as a run
<root>/<name>/metrics.jsonl      metrics, one object per line with its `step`
<root>/<name>/completions.jsonl  evaluation samples, in the same format
<root>/<name>/rollouts.jsonl     training samples, in the same format, as many as `run.rollouts` selects
<root>/<name>/end.json           how the run ended; missing while it goes on, and if its process was killed
<root>/<name>/report.html        a page of curves, completions and health verdicts, if a plugin writes one
<root>/<name>/checkpoints/       see `rlcore.checkpoints.state`
<root>/<name>/start/             the model before training, if a run needs it again and cannot load it by name
<root>/<name>/model/             the last policy, for transformers' `from_pretrained`
<root>/<name>/profile/           timings of the run's phases, see `rlcore.profiling`
<root>/<name>/.lock              see `rlcore.checkpoints.claim`
<root>/<name>/.replaced/         see `rlcore.checkpoints.run_folder`

Also in this file: put files and folders in place so that a crash at any moment leaves the earlier one or the new one,
complete.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime
from pathlib import Path

import attrs
from filelock import FileLock, Timeout

from rlcore.checkpoints.manifest import MISSING, unreadable
from rlcore.config.options import from_json, to_plain
from rlcore.config.yaml_files import dump_yaml
from rlcore.errors import ConfigError, RunExists
from rlcore.logging import get_logger

CONFIG, LOCK, OWNER = "config.yaml", ".lock", ".lock-owner"
ASIDE, REPLACED, DISCARDED = ".aside", ".replaced", ".discarded"
OLD = ".old-"
"""Prefix of the name of a folder while another one takes its place."""


def put_in_place(temporary: Path, place: Path) -> None:
    """Sync a complete folder and rename it to `place`; a folder there is replaced, and deleted after that.

    Raises:
        OSError: a folder that was at `place` is there again.
    """
    share_permissions(temporary)
    sync_folder(temporary)
    old = _old(place)
    sync(place.parent.parent)
    if place.exists():
        if old.exists():
            remove_folder(old)
        place.rename(old)
    try:
        temporary.rename(place)
        sync(place.parent)
    except OSError:
        if place.exists():
            place.rename(temporary)
        put_back(place)
        raise
    remove_folder(old, ignore_errors=True)


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder; of a link to a folder, only the link.

    Raises:
        OSError: it cannot be deleted, unless `ignore_errors` is set.
    """
    if folder.is_symlink():
        with suppress(OSError) if ignore_errors else nullcontext():
            folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def put_back(place: Path) -> None:
    """Rename the folder that was being replaced at `place` back, if the process died before the new one was there."""
    if _old(place).exists() and not place.exists():
        _old(place).rename(place)
        sync(place.parent)


def _old(place: Path) -> Path:
    return place.with_name(f"{OLD}{place.name}")


def share_permissions(folder: Path) -> None:
    """Give the files in `folder` the permissions of the folder itself, which follow the umask.

    Libraries write some files, such as those of safetensors, for their owner only.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o666 != mode:
            path.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Sync everything in `folder` to disk: all files, then all folders, the innermost first."""
    paths = sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in [p for p in paths if p.is_file()] + [p for p in paths if p.is_dir()] + [folder]:
        sync(path)


def sync(path: Path) -> None:
    """Sync a file's contents, or a folder's entries, to disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    # fsync on Windows needs a file opened for writing.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def set_aside(folder: Path) -> None:
    """Move the contents of `folder` to its subfolder `.replaced`."""
    aside = folder / ASIDE
    aside.mkdir()
    for child in contents(folder):
        child.rename(aside / child.name)
    sync(aside)
    aside.rename(folder / REPLACED)
    sync(folder)


def discard(folder: Path) -> None:
    """Delete the contents that were set aside; the new ones are complete.

    The rename is synced with the next checkpoint, before which nothing of the new run has to outlast a power failure.
    """
    if (folder / REPLACED).is_dir():
        (folder / REPLACED).rename(folder / DISCARDED)
        shutil.rmtree(folder / DISCARDED, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Finish the deletion, or undo the replacement, that a process has begun and not finished.

    Returns:
        Whether previous contents were put back.
    """
    if (folder / DISCARDED).is_dir():
        shutil.rmtree(folder / DISCARDED)
    if (folder / REPLACED).is_dir():
        clear(folder)
        (folder / REPLACED).rename(folder / ASIDE)
    aside = folder / ASIDE
    if not aside.is_dir():
        return False
    for child in reversed(contents(aside)):
        child.rename(folder / child.name)
    sync(folder)
    aside.rmdir()
    return True


def clear(folder: Path) -> None:
    """Delete the contents of a run's folder, but neither its lock nor contents that were set aside."""
    for child in contents(folder):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def contents(folder: Path) -> list[Path]:
    """Return the files and folders of a run's folder, config.yaml last, without the lock and what is set aside."""
    others = {LOCK, OWNER, ASIDE, REPLACED, DISCARDED}
    children = [child for child in folder.iterdir() if child.name not in others]
    return sorted(children, key=lambda child: child.name == CONFIG)


log = get_logger("resume")
MARK = "# rlcore run"
_DESCRIBED = re.compile(r"^ +(?:\w+: |- )['\"]?<.+>['\"]?$", re.MULTILINE)
"""An object in config.yaml that no file can contain, such as a lambda, and that must be passed from Python again."""
NEVER, AUTO = "never", "auto"


@attrs.frozen
class RunDir:
    """Paths in a run's folder."""

    path: Path

    @property
    def config(self) -> Path:
        """Return the file of the resolved configuration."""
        return self.path / CONFIG

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
    def end(self) -> Path:
        """Return the file that says how the run ended."""
        return self.path / "end.json"

    @property
    def report(self) -> Path:
        """Return the file of the report."""
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        """Return the folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def start(self) -> Path:
        """Return the folder of the model before training."""
        return self.path / "start"

    @property
    def model(self) -> Path:
        """Return the folder of the last policy."""
        return self.path / "model"

    def write_config(self, config: Mapping[str, object], plugins: Mapping[str, str], notes: Sequence[str] = ()) -> None:
        """Write the resolved configuration as a file that `rlcore train` accepts.

        Args:
            config: all options; values that YAML cannot represent are replaced by a description.
            plugins: distribution → version; written as comments, because they are not options.
            notes: lines to be written likewise.
        """
        lines = [f"{MARK}, written by rlcore {plugins.get('rlcore', '(unknown version)')}; it marks this folder as one"]
        lines += [f"# plugin {dist} {version}" for dist, version in sorted(plugins.items()) if dist != "rlcore"]
        lines += [f"# {note}" for note in notes]
        plain = to_plain(config, nonfinite=lambda number: number)
        body = dump_yaml(plain)
        _replace(self.config, [("\n".join(lines) + "\n" + body).encode()])

    def write_end(self, step: int, how: str, reason: str) -> None:
        """Record how the run ended; a full disk is logged, since the run itself is over.

        Args:
            step: finished steps.
            how: `finished`, `stopped` on request, `interrupted` by a signal, or `failed`.
            reason: the budget that was spent, who asked for the stop, the signal, or the error.
        """
        ended = {"how": how, "step": step, "reason": reason, "at": datetime.now().astimezone().isoformat()}
        try:
            _replace(self.end, [(json.dumps(ended) + "\n").encode()])
        except OSError as error:
            log.warning("how the run ended could not be recorded", run=str(self.path), reason=str(error))

    def continuation(self) -> str:
        """Return the command, or the call, that continues the run; empty if it has no checkpoint."""
        if not any(self.checkpoints.glob("[0-9]*")):
            return ""
        where = self.path.absolute()
        root = os.path.relpath(where.parent) if where.is_relative_to(Path.cwd()) else str(where.parent)
        config = self.config.read_text(encoding="utf-8", errors="replace") if is_run(self.path) else ""
        if _DESCRIBED.search(config):
            changes = json.dumps({"root": root, "name": where.name, "resume": AUTO}, ensure_ascii=False)
            return f"rlcore.train(..., run={changes})  # with the arguments of before"
        words = [f"run.root={root}", f"run.name={where.name}", "run.resume=auto"]
        words += ["run.overwrite=false"] if re.search(r"^  overwrite: true$", config, re.MULTILINE) else []
        return shlex.join(["rlcore", "train", os.path.join(root, where.name, CONFIG), *words])  # noqa: PTH118  a text

    def rewind(self, step: int | None) -> None:
        """Remove metrics, completions and rollouts of later steps, an incomplete last line, and damaged lines.

        A warning counts damaged lines, those that are complete and have no step.

        Args:
            step: number of finished steps at the resumed checkpoint; None removes all lines.
        """
        for file in self._logs():
            _replace(file, _lines_until(file, step))

    def sync_logs(self) -> None:
        """Sync metrics, completions and rollouts to disk, so that a checkpoint never outlives the lines before it."""
        for file in self._logs():
            sync(file)

    def remove_unfinished(self) -> None:
        """Delete what a process has written of the configuration or a log and not renamed to its final name."""
        for child in list(self.path.iterdir()):
            if _UNFINISHED.fullmatch(child.name):
                child.unlink()

    def _logs(self) -> list[Path]:
        return [file for file in (self.metrics, self.completions, self.rollouts) if file.exists()]


_UNFINISHED = re.compile(r"\.(config\.yaml|end\.json|report\.html|(metrics|completions|rollouts)\.jsonl)\.\d+")


def open_folder(root: Path, name: str | None, trainer: str) -> Path:
    """Create the folder of a run, or find it; no file in it is changed.

    Args:
        root: parent folder of the runs; created if missing.
        name: the folder's name; None means `<trainer>-YYYYmmdd-HHMMSS`, with `-2`, `-3`, ... if that exists.
        trainer: prefix of the name if `name` is None.

    Raises:
        RunExists: the folder exists, is not empty, and is not a run's.
        CheckpointError: the folder's config.yaml cannot be read.
        ConfigError: the name is not a plain folder name.
    """
    if name is None:
        return _make_fresh(root, trainer)
    _check_name(name)
    folder = root / name
    if folder.exists():
        if not folder.is_dir() or not (is_run(folder) or _is_begun(folder)):
            raise RunExists(f"{folder} exists and is no run of rlcore, so it is left unchanged: pass another run.name")
    else:
        folder.mkdir(parents=True)
        sync(folder.parent)
    return folder


def resumes(folder: Path, resume: str, *, overwrite: bool) -> bool:
    """Return whether the run in `folder` is to be resumed; if not, it is to be overwritten.

    Args:
        folder: folder of an existing run.
        resume: `never`, `auto` (resume the run in the folder), or a checkpoint's path (resume the run if the checkpoint
            is in its folder).
        overwrite: delete the run.

    Raises:
        RunExists: neither `resume` nor `overwrite` applies.
        ConfigError: `overwrite` would delete the checkpoint to resume.
    """
    applies = resume == AUTO or (resume != NEVER and Path(resume).resolve().is_relative_to(folder.resolve()))
    if applies and overwrite:
        raise ConfigError(
            f"run.overwrite = true would delete {folder}, which run.resume = {resume} continues: pass only one"
        )
    if not applies and not overwrite:
        raise RunExists(
            f"{folder} already holds a run: pass run.resume=auto to continue it, run.overwrite=true to delete it "
            "and start again, or another run.name"
        )
    return applies


def is_run(folder: Path) -> bool:
    """Return whether `folder` contains a config.yaml written by rlcore.

    Raises:
        CheckpointError: there is a config.yaml that cannot be read, so that the folder may be a run.
    """
    path = folder / CONFIG
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a FIFO would wait for its writer
            return False
        with path.open("rb") as file:
            return file.readline().startswith(MARK.encode())
    except (*MISSING, ValueError):  # a ValueError: no file can have this name
        return False
    except OSError as error:
        raise unreadable(path, error) from error


def _is_begun(folder: Path) -> bool:
    """Return whether all that `folder` contains was left by a process that died before it had written config.yaml."""
    return all(
        is_run(child)
        if child.name in {REPLACED, ASIDE}
        else child.name in {LOCK, OWNER} or _UNFINISHED.fullmatch(child.name) is not None
        for child in folder.iterdir()
    )


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


def _lines_until(file: Path, step: int | None) -> Iterator[bytes]:
    if step is None:
        return
    num_damaged = 0
    with file.open("rb") as lines:
        for line in lines:
            found = _step_of(line)
            if line.endswith(b"\n") and 0 <= found <= step:
                yield line
            num_damaged += line.endswith(b"\n") and found < 0
    if num_damaged:
        log.warning("damaged lines are removed", file=str(file), lines=num_damaged)


def _step_of(line: bytes) -> int:
    """Return the step of a line; -1 if it has none."""
    try:
        step = from_json(line)["step"]
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
        sync(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def is_locked(folder: Path) -> bool:
    """Return whether a process writes to a run; False if that cannot be told, as in a folder that is read-only."""
    file = folder / LOCK
    if not (file.is_file() and (folder / OWNER).is_file()):  # no lock is touched that a run may be about to take
        return False
    lock = FileLock(file.resolve(), timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False
