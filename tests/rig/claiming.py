"""Helpers that claim run folders and leave small runs in them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from checkpoint_making import contents, fill_with

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.claim import Claim, claim
from rlcore.checkpoints.run_folder import RunDir
from rlcore.config import structure, unstructure
from rlcore.ranks import Ranks
from rlcore.settings import TrainConfig

MANIFEST = {"plugins": {"rlcore": "0.1.0"}}


def config_of(root: Path, **run: Any) -> TrainConfig:
    given = {"trainer": {"name": "sft"}, "run": {"root": str(root), "name": "mine", **run}}
    return structure(TrainConfig, given, where="test")


def claimed(root: Path, **run: Any) -> AbstractContextManager[Claim]:
    return claim(config_of(root, **run), Ranks(), {"rlcore": "0.1.0"}, "sft")


def build(root: Path, *, text: str | None = None, **run: Any) -> Claim:
    """Claim a folder as a run does, write a file into it if `text` is given, and release it."""
    with claimed(root, **run) as found:
        if text is not None:
            (found.path / "notes.txt").write_text(text)
    assert found.lock is not None
    found.lock.release()
    return found


def make_run(root: Path, *steps: int, **run: Any) -> RunDir:
    """Make the folder of a run with a line of metrics and a checkpoint for each of `steps`."""
    place = RunDir(build(root, **run).path)
    place.metrics.write_text("".join(f'{{"step": {step}}}\n' for step in steps))
    checkpoints = Checkpoints(place.checkpoints, keep_last=9)
    for step in steps:
        checkpoints.write(step, fill_with(step), manifest={"config": unstructure(config_of(root)), **MANIFEST})
    return place


def left_in(folder: Path) -> dict[str, bytes]:
    """Return the contents of a run's folder, without its lock."""
    return {name: data for name, data in contents(folder).items() if not name.startswith(".lock")}
