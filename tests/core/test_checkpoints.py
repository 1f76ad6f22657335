"""Checkpoints are whole or not there; damage is noticed; the newest and the best stay."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.checkpoints import Checkpoints
from rlcore.errors import CheckpointError
from rlcore.state import load_state, save_state

PLUGINS = {"plugins": {"rlcore": "0.1.0", "rlcore-ppo": "0.1.0"}, "config": {"gen": {"temperature": 0.5}}}
FILES = ("trainer.safetensors", "model/config.json", "model/tokenizer.json", "rng/0.safetensors")


def fill_with(value: float) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "rng").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"value": value}))
        (folder / "model" / "tokenizer.json").write_text("é" * 100, encoding="utf-8")
        save_state(folder / "trainer.safetensors", {"step": value, "moment": torch.full((50,), value)})
        save_state(folder / "rng" / "0.safetensors", torch.get_rng_state())

    return fill


def write(checkpoints: Checkpoints, step: int, score: float | None = None) -> Path:
    return checkpoints.write(step, fill_with(step), manifest=PLUGINS, score=score)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def test_what_was_written_is_found_with_its_manifest(folder: Path) -> None:
    path = write(Checkpoints(folder), 12, score=0.25)
    assert path == folder / "00000012"
    found = Checkpoints(folder).newest_whole()
    assert found is not None
    assert (found.path, found.step, found.score) == (path, 12, 0.25)
    assert found.manifest["schema"] == 1
    assert found.manifest["config"] == {"gen": {"temperature": 0.5}}
    assert found.manifest["plugins"]["rlcore-ppo"] == "0.1.0"
    assert set(found.manifest["files"]) == set(FILES)
    assert found.manifest["bytes"] == sum(len(data) for name, data in contents(path).items() if name != "manifest.json")
    assert load_state(path / "trainer.safetensors")["step"] == 12


def test_checksums_are_those_of_sha256sum(folder: Path) -> None:
    path = write(Checkpoints(folder), 1)
    listing = "".join(
        f"{entry['sha256']}  {name}\n" for name, entry in Checkpoints.open(path).manifest["files"].items()
    )
    subprocess.run(["sha256sum", "--check", "--strict"], input=listing, text=True, cwd=path, check=True)


def test_nothing_is_found_where_nothing_was_written(folder: Path) -> None:
    assert Checkpoints(folder).newest_whole() is None
    assert not folder.exists()
    with pytest.raises(CheckpointError, match="there is no checkpoint here"):
        Checkpoints.open(folder / "00000001")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_flipped_bit_in_any_file_is_noticed_and_the_one_before_is_used(folder: Path, name: str) -> None:
    checkpoints = Checkpoints(folder)
    good, bad = write(checkpoints, 1), write(checkpoints, 2)
    data = bytearray((bad / name).read_bytes())
    data[len(data) // 2] ^= 1
    (bad / name).write_bytes(data)
    warnings: list[dict[str, Any]] = []
    found = Checkpoints(folder).newest_whole(lambda event, **fields: warnings.append({"event": event, **fields}))
    assert found is not None
    assert found.path == good
    assert len(warnings) == 1
    assert warnings[0]["checkpoint"] == str(bad)
    assert str(bad / name) in warnings[0]["damage"]
    with pytest.raises(CheckpointError, match=name):
        Checkpoints.open(bad)


def test_the_warning_shows_the_first_digits_of_both_checksums(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(Checkpoints(folder), 1)
    expected = Checkpoints.open(path).manifest["files"]["model/config.json"]["sha256"]
    (path / "model" / "config.json").write_text(json.dumps({"value": 9}))
    seen = subprocess.run(["sha256sum", path / "model/config.json"], capture_output=True, text=True, check=True).stdout
    assert Checkpoints(folder).newest_whole() is None
    shown = capsys.readouterr().err
    assert f"its checksum is {seen[:8]}, and {expected[:8]} was written" in shown
    assert "model/config.json" in shown


def test_every_single_bit_of_the_manifest_counts_or_says_the_same(folder: Path) -> None:
    path = write(Checkpoints(folder), 1)
    whole = (path / "manifest.json").read_bytes()
    said = json.loads(whole)
    choose = random.Random(0)
    for place in range(len(whole)):
        data = bytearray(whole)
        data[place] ^= 1 << choose.randrange(8)
        (path / "manifest.json").write_bytes(data)
        try:
            manifest = Checkpoints.open(path).manifest
        except CheckpointError:
            continue
        assert manifest == said


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "lengthened", "missing"])
def test_a_file_of_another_length_is_noticed(folder: Path, name: str, damage: str) -> None:
    path = write(Checkpoints(folder), 1)
    file, data = path / name, (path / name).read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes({"truncated": data[: len(data) // 2], "emptied": b"", "lengthened": data + b"\0"}[damage])
    with pytest.raises(CheckpointError, match=name):
        Checkpoints.open(path)


def test_a_manifest_that_is_no_manifest_is_damage(folder: Path) -> None:
    path = write(Checkpoints(folder), 1)
    for text in ("[]", "3", "{}", '{"sha256": 1}', "[" * 100_000, '{"sha256": "00"}'):
        (path / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Checkpoints.open(path)


def test_all_damaged_means_none_and_a_warning_for_each(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=3)
    for step in (1, 2, 3):
        (write(checkpoints, step) / "manifest.json").unlink()
    events: list[str] = []
    assert checkpoints.newest_whole(lambda event, **fields: events.append(fields["checkpoint"])) is None
    assert [Path(event).name for event in events] == ["00000003", "00000002", "00000001"]


def test_newest_is_by_number_past_the_padding(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 99_999_999)
    write(checkpoints, 100_000_000)
    found = checkpoints.newest_whole()
    assert found is not None
    assert found.step == 100_000_000


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "mode", "scores", "kept"),
    [
        (1, 0, "max", [1, 2, 3], [3]),
        (2, 0, "max", [1, 2, 3], [2, 3]),
        (5, 0, "max", [1, 2, 3], [1, 2, 3]),
        (1, 1, "max", [9, 2, 3], [1, 3]),
        (1, 1, "min", [9, 2, 3, 4], [2, 4]),
        (1, 2, "max", [9, 1, 8, 2, 0], [1, 3, 5]),
        (1, 1, "max", [5, 5, 1], [2, 3]),
        (1, 1, "min", [5, 5, 8], [2, 3]),
        (1, 1, "max", [5, float("nan"), 1, 0], [1, 4]),
        (1, 1, "min", [float("nan"), 5, float("nan"), 6], [2, 4]),
        (1, 1, "max", [None, None, None], [3]),
        (1, 1, "max", [None, -4, None], [2, 3]),
        (2, 2, "max", [1, 2, 3, 4], [3, 4]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    folder: Path, keep_last: int, keep_best: int, mode: Any, scores: list[float | None], kept: list[int]
) -> None:
    for step, score in enumerate(scores, start=1):
        # Built anew each time, as by a run that is resumed after every step: nothing is remembered outside the folder.
        write(Checkpoints(folder, keep_last, keep_best, mode), step, score)
    assert steps(folder) == kept


def test_keeping_none_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_last = 0"):
        Checkpoints(folder, keep_last=0)


def test_what_came_after_the_resumed_step_goes_with_the_next_write(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=3)
    for step in (10, 20, 30):
        write(checkpoints, step)
    write(checkpoints, 15)
    assert steps(folder) == [10, 15]


def test_a_step_written_again_is_replaced(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 5, score=1.0)
    path = checkpoints.write(5, fill_with(77), manifest=PLUGINS, score=2.0)
    found = checkpoints.open(path)
    assert found.score == 2.0
    assert load_state(path / "trainer.safetensors")["step"] == 77
    assert steps(folder) == [5]


def full(folder: Path) -> None:
    fill_with(1)(folder)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_in_safetensors(folder: Path) -> None:
    """Really fail in the middle of a safetensors write, by the limit on a file's size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        from safetensors.torch import save_file

        save_file({"weight": torch.zeros(10_000)}, folder / "model.safetensors")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("fill", [full, full_in_safetensors])
@pytest.mark.parametrize("step", [2, 3])
def test_a_full_disk_leaves_the_earlier_checkpoints_as_they_were(
    folder: Path, fill: Callable[[Path], None], step: int
) -> None:
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
    assert "00000002, is as it was" in message
    assert "run.resume=auto" in message
    assert isinstance(caught.value.__cause__, Exception)


def test_a_full_disk_at_the_first_checkpoint_says_there_is_none(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no earlier one"):
        Checkpoints(folder).write(1, full, manifest={})
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("survives", range(10))
@pytest.mark.parametrize("step", [1, 2])
def test_a_disk_that_fails_to_sync_never_costs_the_last_good_one(
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
def test_other_errors_of_fill_come_through_and_leave_nothing(folder: Path, error: BaseException) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 1)

    def fill(inside: Path) -> None:
        (inside / "half").write_text("x")
        raise error

    with pytest.raises(type(error)):
        checkpoints.write(2, fill, manifest={})
    assert steps(folder) == [1]


def test_a_name_the_manifest_needs_itself_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="'files' of its own"):
        Checkpoints(folder).write(1, fill_with(1), manifest={"files": 3})


CRASH = """
import os, sys
from pathlib import Path
from rlcore.checkpoints import Checkpoints
import rlcore.checkpoints as module

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
    assert steps(folder) == [step]
    found = checkpoints.newest_whole()
    assert found is not None
    assert (found.path / "file").read_text() == text


def test_folders_of_others_are_left_alone(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    (folder / "12 old").mkdir()
    (folder / "7").write_text("a file")
    checkpoints = Checkpoints(folder, keep_last=1)
    write(checkpoints, 1)
    write(checkpoints, 2)
    assert {path.name for path in folder.iterdir()} == {"notes", "12 old", "7", "00000002"}


def test_an_old_one_that_cannot_be_removed_costs_a_warning_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(folder, keep_last=1)
    write(checkpoints, 1)
    real = shutil.rmtree

    def rmtree(path: Path, **options: Any) -> None:
        if path.name.endswith("gone"):
            raise OSError(errno.EBUSY, "busy")
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert write(checkpoints, 2).name == "00000002"
    assert "could not be removed" in capsys.readouterr().err


def test_a_checkpoint_whose_manifest_is_gone_is_not_the_best(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=1, keep_best=1)
    (write(checkpoints, 1, score=9.0) / "manifest.json").unlink()
    write(checkpoints, 2, score=1.0)
    write(checkpoints, 3, score=0.0)
    assert steps(folder) == [2, 3]
