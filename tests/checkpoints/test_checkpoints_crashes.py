"""Tests of interrupted checkpoint writes: earlier checkpoints stay intact whatever ends the write."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_making import FILES, PLUGINS, contents, fill_with, folder, steps, write

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.errors import CheckpointError

__all__ = ["folder"]  # a fixture


def full(folder: Path) -> None:
    fill_with(1)(folder)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_safetensors(folder: Path) -> None:
    """Make a safetensors write fail in the middle, with a real limit on the file size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        from safetensors.torch import save_file

        save_file({"weight": torch.zeros(10_000)}, folder / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("fill", [full, full_in_safetensors])
@pytest.mark.parametrize("step", [2, 3])
def test_a_full_disk_does_not_change_earlier_checkpoints(folder: Path, fill: Callable[[Path], None], step: int) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1)
    write(checkpoints, 2)
    before = contents(folder)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.write(step, fill, manifest=PLUGINS)
    assert contents(folder) == before
    message = str(caught.value)
    assert f"the checkpoint of step {step} could not be written to {folder}" in message
    assert "No space left on device" in message or "File too large" in message
    assert "MB are free" in message
    assert "00000002, is unchanged" in message
    assert "run.resume=auto" in message
    assert isinstance(caught.value.__cause__, Exception)


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, r"free some space \(checkpoint\.keep_last and keep_best set how many are kept\), then"),
        (errno.EIO, r"check the disk or the network mount, then"),
    ],
)
def test_the_advice_about_a_failed_write_fits_its_cause(folder: Path, number: int, advice: str) -> None:
    def fail(at: Path) -> None:
        raise OSError(number, os.strerror(number), str(at))

    with pytest.raises(CheckpointError, match=advice):
        Checkpoints(folder).write(1, fail, manifest={})


def test_a_full_disk_at_the_first_checkpoint_is_an_error_that_says_none_exists(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no earlier checkpoint"):
        Checkpoints(folder).write(1, full, manifest={})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("survives", range(10))
@pytest.mark.parametrize("step", [1, 2])
def test_a_failing_sync_never_removes_the_last_good_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch, survives: int, step: int
) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1)
    before = contents(folder / "00000001")
    calls = 0

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > survives:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(CheckpointError, match="Input/output error"):
        write(checkpoints, step)
    assert contents(folder / "00000001") == before
    assert steps(folder) == [1]


def test_every_file_and_folder_is_synced_before_the_rename(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(str(Path(f"/proc/self/fd/{handle}").readlink())))
    write(Checkpoints(folder), 1)
    inside = [Path(name).relative_to(folder) for name in synced if Path(name) not in {folder, folder.parent}]
    assert {str(path.relative_to(path.parts[0])) for path in inside} == {*FILES, "manifest.json", "model", "rng", "."}
    assert all(path.parts[0].startswith(".tmp-00000001-") for path in inside)
    assert synced[-2:] == [str(folder.parent), str(folder)]


@pytest.mark.parametrize("error", [ValueError("from inside"), KeyboardInterrupt()])
def test_an_error_while_filling_a_checkpoint_is_raised_and_leaves_no_files(folder: Path, error: BaseException) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1)

    def fill(inside: Path) -> None:
        (inside / "half").write_text("x")
        raise error

    with pytest.raises(type(error)):
        checkpoints.write(2, fill, manifest={})
    assert steps(folder) == [1]


CRASH = """
import os, sys
from pathlib import Path
from rlcore.checkpoints.checkpoint import Checkpoints
import rlcore.checkpoints.checkpoint as module

folder, where = Path(sys.argv[1]), sys.argv[2]
checkpoints = Checkpoints(folder, keep_last=1)
fill = lambda text: (lambda inside: (inside / "file").write_text(text))
checkpoints.write(1, fill("first"), manifest={})
if where in ("aside", "renamed"):
    real, count = Path.rename, 0
    def rename(self, target):
        global count
        count += 1
        if where == "aside" and count == 2:
            os._exit(9)
        result = real(self, target)
        if where == "renamed" and count == 2:
            os._exit(9)
        return result
    Path.rename = rename
    checkpoints.write(1, fill("second"), manifest={})
elif where == "fill":
    checkpoints.write(2, lambda inside: (inside.joinpath("half").write_text("x"), os._exit(9)), manifest={})
elif where == "pruning":
    module.shutil.rmtree = lambda path, **_: os._exit(9) if path.name.endswith("gone") else None
    checkpoints.write(2, fill("second"), manifest={})
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "step", "text"),
    [("fill", 1, "first"), ("aside", 1, "first"), ("renamed", 1, "second"), ("pruning", 2, "second")],
)
def test_a_crash_anywhere_leaves_a_whole_checkpoint_and_no_litter(
    folder: Path, where: str, step: int, text: str
) -> None:
    done = subprocess.run([sys.executable, "-c", CRASH, folder, where], capture_output=True, text=True, check=False)
    assert done.returncode == 9, done.stderr
    assert any(path.name.startswith(".") for path in folder.iterdir())
    checkpoints = Checkpoints(folder)
    checkpoints.remove_unfinished()
    assert steps(folder) == [step]
    found = checkpoints.newest_whole()
    assert found is not None
    assert (found.path / "file").read_text() == text
