"""Tests of checkpoints that cannot be read now: the command ends, and nothing is skipped, started anew or deleted."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import fill_with, write
from claiming import build, left_in, make_run
from kill_points import fork, wait

from rlcore.checkpoints import manifest as manifests
from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.config.options import to_json
from rlcore.errors import CheckpointError, DamagedCheckpoint

NOBODY = 65534


def rewrite(checkpoint: Path, **fields: Any) -> None:
    """Change fields of a manifest, None to remove them, and its checksum with them."""
    file = checkpoint / "manifest.json"
    contents = json.loads(file.read_text()) | fields
    contents = {key: value for key, value in contents.items() if value is not None and key != "sha256"}
    file.write_text(to_json(contents | {"sha256": manifests._digest_of(contents)}))


def failing(number: int, function: Any, at: Path) -> Callable[..., Any]:
    """Return the function, failing for the path `at`."""

    def fail(path: Any = ".", *rest: Any, **options: Any) -> Any:
        if not isinstance(path, int) and Path(path) == at:
            raise OSError(number, os.strerror(number), str(path))
        return function(path, *rest, **options)

    return fail


@pytest.mark.parametrize(
    ("module", "name", "within"),
    [
        (io, "open", "00000002/manifest.json"),
        (io, "open", "00000002/model/config.json"),
        (os, "stat", "00000002/trainer.safetensors"),
        (os, "stat", "00000002"),
        (os, "scandir", "."),
    ],
)
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_checkpoint_that_cannot_be_read_ends_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, within: str, number: int
) -> None:
    run = make_run(tmp_path, 1, 2)
    before = left_in(run.path)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, failing(number, getattr(module, name), run.checkpoints / within))
        with pytest.raises(CheckpointError) as caught:
            build(tmp_path, resume="auto")
    message = str(caught.value)
    assert not isinstance(caught.value, DamagedCheckpoint)
    assert f"{run.checkpoints / within}: cannot be read: {os.strerror(number)}" in message
    assert f"(errno {number}, {errno.errorcode[number]})" in message
    assert ("its permissions" if number == errno.EACCES else "the disk or the network mount") in message
    assert left_in(run.path) == before
    found = build(tmp_path, resume="auto").checkpoint
    assert found is not None
    assert found.step == 2


@pytest.mark.parametrize("call", range(3))
def test_a_configuration_that_is_unreadable_for_a_moment_does_not_start_the_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    run = make_run(tmp_path, 1, 2)
    before, calls, read = left_in(run.path), itertools.count(), io.open
    failed = failing(errno.EIO, read, run.config)

    def fail_once(path: Any, *rest: Any, **options: Any) -> Any:
        fails = path == run.config and next(calls) == call
        return (failed if fails else read)(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", fail_once)
        with pytest.raises(CheckpointError, match=r"config\.yaml: cannot be read: Input/output error"):
            build(tmp_path, resume="auto")
    assert left_in(run.path) == before


def test_missing_checkpoints_of_an_unmounted_disk_do_not_start_the_run_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    disk = run.checkpoints.rename(tmp_path / "disk")
    run.checkpoints.symlink_to(disk)
    disk.rename(tmp_path / "unmounted")
    before = left_in(run.path)
    with pytest.raises(CheckpointError, match=r"checkpoints: cannot be read: No such file or directory"):
        build(tmp_path, resume="auto")
    assert left_in(run.path) == before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schema": 2}, "has schema 2, and this rlcore reads 1: use the rlcore that wrote it"),
        ({"files": None}, "lacks one of .*files"),
        ({"step": "2"}, "lacks one of .*step"),
    ],
)
def test_a_checkpoint_with_a_foreign_manifest_ends_the_command(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    run = make_run(tmp_path, 1, 2)
    rewrite(run.checkpoints / "00000002", **fields)
    before = left_in(run.path)
    with pytest.raises(CheckpointError, match=words) as caught:
        build(tmp_path, resume="auto")
    assert not isinstance(caught.value, DamagedCheckpoint)
    assert left_in(run.path) == before


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user may enter, as those of pytest are not."""
    folder = Path(tempfile.mkdtemp())
    yield folder
    shutil.rmtree(folder)


def test_a_user_who_may_not_read_the_weights_is_refused(shared: Path) -> None:
    run = make_run(shared, 1, 2)
    file, said = run.checkpoints / "00000002/trainer.safetensors", shared / "said"
    before = left_in(run.path)
    file.chmod(0)
    is_root = os.geteuid() == 0
    for path in [shared, *shared.rglob("*")] if is_root else []:
        if path != file:
            os.chown(path, NOBODY, NOBODY)

    def resume() -> None:
        if is_root:
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        build(shared, resume="auto")

    assert wait(fork(resume, said)) == 1
    assert f"{file}: cannot be read: Permission denied (errno 13, EACCES)" in said.read_text()
    file.chmod(0o600)
    assert left_in(run.path) == before


def test_a_run_whose_checkpoints_are_all_damaged_is_not_started_anew(tmp_path: Path) -> None:
    run = make_run(tmp_path, 1, 2)
    for path in run.checkpoints.iterdir():
        (path / "model/config.json").unlink()
    before = left_in(run.path)
    with pytest.raises(DamagedCheckpoint, match=r"00000001, 00000002.*run\.resume=never run\.overwrite=true"):
        build(tmp_path, resume="auto")
    assert left_in(run.path) == before
    assert build(tmp_path, overwrite=True).checkpoint is None
    assert left_in(run.path).keys() == {"config.yaml"}


def test_a_run_without_any_checkpoint_starts_anew(tmp_path: Path) -> None:
    make_run(tmp_path)
    found = build(tmp_path, resume="auto")
    assert found.is_continued
    assert found.checkpoint is None


@pytest.mark.parametrize("number", [None, errno.EACCES])
def test_checkpoints_that_cannot_be_verified_are_neither_pruned_nor_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "checkpoints"
    for step in (1, 2, 3, 4):
        write(Checkpoints(folder, keep_last=9), step, score=float(step))
    if number is None:
        (folder / "00000003/trainer.safetensors").write_bytes(b"damage")
    else:
        at = folder / "00000003/manifest.json"
        monkeypatch.setattr(io, "open", failing(number, io.open, at))
    checkpoints = Checkpoints(folder, keep_last=2)
    write(checkpoints, 5)
    write(checkpoints, 6)
    monkeypatch.undo()
    assert sorted(path.name[-1] for path in folder.iterdir()) == ["3", "5", "6"]
    assert capsys.readouterr().err.count("checkpoint cannot be verified and is not deleted") == 1


def test_an_unreadable_checkpoint_of_the_same_step_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"
    write(Checkpoints(folder), 1)
    data = (folder / "00000001/trainer.safetensors").read_bytes()
    checkpoints = Checkpoints(folder)
    with monkeypatch.context() as patch:
        patch.setattr(io, "open", failing(errno.EIO, io.open, folder / "00000001/manifest.json"))
        with pytest.raises(CheckpointError, match="Input/output error"):
            checkpoints.write(1, fill_with(7), manifest={})
    assert (folder / "00000001/trainer.safetensors").read_bytes() == data
    (folder / "00000001/manifest.json").unlink()  # damage that is proven is replaced
    checkpoints.write(1, fill_with(7), manifest={})
    assert Checkpoints.open(folder / "00000001").step == 1
