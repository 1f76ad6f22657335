"""Claim the folder of a run, and undo all changes to it if the run cannot be built."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints
from rlcore.checkpoints.run_folder import REPLACED, RunDir, is_run
from rlcore.config.plain import to_plain
from rlcore.errors import CheckpointError, ConfigError, RLCoreError
from rlcore.logging import get_logger
from rlcore.ranks import Ranks
from rlcore.settings import TrainConfig, to_record


@attrs.frozen
class Claim:
    """The folder of a run and the checkpoint to resume from.

    Attributes:
        path: the run's folder.
        is_continued: whether the folder already contained this run.
        checkpoint: the checkpoint to resume from; None for a new run.
        start: folder of the model before training, if the resumed run saved it.
    """

    path: Path
    is_continued: bool
    checkpoint: Checkpoint | None
    start: Path | None


@contextmanager
def claim(config: TrainConfig, ranks: Ranks, plugins: dict[str, str], trainer: str) -> Iterator[Claim]:
    """Create or find the run's folder on rank 0 and broadcast it to all ranks; undo the changes if the block raises.

    Raises:
        RunExists: the folder contains a run, and neither `run.resume` nor `run.overwrite` is set.
        CheckpointError: the checkpoint of `run.resume` is missing, damaged or of another trainer.
        ConfigError: the folder cannot be created, or options differ from those of the checkpoint.
    """
    existed = config.run.name is not None and _folder(config).exists()

    def take() -> Claim:
        try:
            return _claim(config, plugins, trainer)
        except OSError as error:
            if isinstance(error, RLCoreError):
                raise
            raise ConfigError(f"run.root = {config.run.root!r}: the run's folder cannot be created: {error}") from error

    found = ranks.on_main(take)
    try:
        if ranks.is_main and not found.is_continued:
            RunDir(found.path).write_config(to_record(config), plugins)
        yield found
    except BaseException:
        if ranks.is_main and not found.is_continued:
            _undo(found.path, existed)
        raise
    if ranks.is_main:
        shutil.rmtree(found.path / REPLACED, ignore_errors=True)
        if found.is_continued:
            RunDir(found.path).write_config(to_record(config), plugins)


def _folder(config: TrainConfig) -> Path:
    return Path(config.run.root) / (config.run.name or "")


def _claim(config: TrainConfig, plugins: Mapping[str, str], trainer: str) -> Claim:
    run, folder = config.run, _folder(config)
    if run.name is None and run.resume == "auto":
        raise ConfigError("run.resume = 'auto': needs run.name, the run to continue")
    checkpoint = None if run.resume in ("never", "auto") else Checkpoints.open(Path(run.resume))
    if checkpoint is not None:
        _check_same(checkpoint, config, plugins, trainer)
    replaces = run.name is not None and run.overwrite and run.resume == "never" and is_run(folder)
    if replaces:
        _set_aside(folder)
    run_dir = RunDir.create(run.root, run.name, overwrite=run.overwrite, resume=run.resume, trainer=trainer)
    if checkpoint is None and run_dir.is_continued:
        checkpoint = Checkpoints(run_dir.checkpoints).newest_whole()
        if checkpoint is None:
            get_logger("resume").warning(
                "the run has no undamaged checkpoint and starts at step 0", run=str(run_dir.path)
            )
        else:
            _check_same(checkpoint, config, plugins, trainer)
    start = None if checkpoint is None else checkpoint.path.parent.parent / "start"
    return Claim(
        run_dir.path, run_dir.is_continued, checkpoint, start if start is not None and start.is_dir() else None
    )


def _check_same(checkpoint: Checkpoint, config: TrainConfig, plugins: Mapping[str, str], trainer: str) -> None:
    """Raise if options differ from those of the checkpoint, because its state belongs to those options.

    Options that another version of a plugin added or removed only cause a warning.
    """
    _check_trainer(checkpoint, trainer)
    then, now = checkpoint.manifest.get("config", {}), to_plain(to_record(config))
    changed: list[str] = []
    versions: list[str] = []
    for section, free in (("trainer", {"name"}), ("model", {"path", "tokenizer"}), ("gen", set())):
        old, new = _flat(then.get(section, {})), _flat(now[section])
        for key in sorted((old.keys() | new.keys()) - free):
            if old.get(key) == new.get(key):
                continue
            is_of_version = (key in old) != (key in new) and checkpoint.manifest.get("plugins") != plugins
            change = f"{section}.{key} was {old.get(key, 'not there')!r}, is {new.get(key, 'not there')!r}"
            (versions if is_of_version else changed).append(change)
    masks = [config.get("data", {}).get("logit_mask") for config in (then, now)]
    if (masks[0] is None) != (masks[1] is None):
        changed.append(f"data.logit_mask was {masks[0]!r:.60}, is {masks[1]!r:.60}")
    if changed:
        raise ConfigError(
            f"{checkpoint.path} was written with other options: {'; '.join(changed)}. Resume with the original "
            f"options, or start a new run from {checkpoint.path / 'model'}"
        )
    for change in versions:
        get_logger("resume").warning(f"another version of a plugin added or removed an option: {change}")


def _flat(values: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested options as one mapping from dotted paths to values."""
    if not isinstance(values, Mapping):
        return {prefix[:-1]: values}
    return {key: value for name, part in values.items() for key, value in _flat(part, f"{prefix}{name}.").items()}


def _check_trainer(checkpoint: Checkpoint, trainer: str) -> None:
    writer = str(checkpoint.manifest.get("config", {}).get("trainer", {}).get("name"))
    if writer.rpartition(":")[2] != trainer:
        raise CheckpointError(
            f"{checkpoint.path} was written by trainer '{writer}', and '{trainer}' cannot resume from it: "
            f"set trainer.name to '{writer}', or start a new run from {checkpoint.path / 'model'}"
        )


def _set_aside(folder: Path) -> None:
    shutil.rmtree(folder / REPLACED, ignore_errors=True)
    children = list(folder.iterdir())
    (folder / REPLACED).mkdir()
    for child in children:
        child.rename(folder / REPLACED / child.name)


def _undo(folder: Path, existed: bool) -> None:
    """Restore the folder to its state before `_claim`."""
    for child in folder.iterdir():
        if child.name != REPLACED:
            shutil.rmtree(child) if child.is_dir() else child.unlink()
    if (folder / REPLACED).is_dir():
        for child in (folder / REPLACED).iterdir():
            child.rename(folder / child.name)
        (folder / REPLACED).rmdir()
    elif not existed:
        folder.rmdir()
