"""Tests of checkpoints: they are written atomically, and damage is detected."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import FILES, contents, fill_with, folder, write

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.state import load_state
from rlcore.errors import CheckpointError

__all__ = ["folder"]  # a fixture


def test_the_newest_checkpoint_is_found_with_its_manifest(folder: Path) -> None:
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


def test_a_folder_without_checkpoints_has_no_newest_checkpoint(folder: Path) -> None:
    assert Checkpoints(folder).newest_whole() is None
    assert not folder.exists()
    with pytest.raises(CheckpointError, match="there is no checkpoint here"):
        Checkpoints.open(folder / "00000001")


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_flipped_bit_in_any_file_is_noticed_and_the_previous_checkpoint_is_used(folder: Path, name: str) -> None:
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


def test_every_flipped_bit_of_a_manifest_is_noticed_or_has_no_effect(folder: Path) -> None:
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


def test_a_malformed_manifest_counts_as_damage(folder: Path) -> None:
    path = write(Checkpoints(folder), 1)
    for text in ("[]", "3", "{}", '{"sha256": 1}', "[" * 100_000, '{"sha256": "00"}'):
        (path / "manifest.json").write_text(text)
        with pytest.raises(CheckpointError, match=r"manifest\.json"):
            Checkpoints.open(path)


def test_if_all_checkpoints_are_damaged_none_is_found_and_each_causes_a_warning(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=3)
    for step in (1, 2, 3):
        (write(checkpoints, step) / "manifest.json").unlink()
    events: list[str] = []
    assert checkpoints.newest_whole(lambda event, **fields: events.append(fields["checkpoint"])) is None
    assert [Path(event).name for event in events] == ["00000003", "00000002", "00000001"]


def test_checkpoints_are_sorted_by_number_also_beyond_eight_digits(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 99_999_999)
    write(checkpoints, 100_000_000)
    found = checkpoints.newest_whole()
    assert found is not None
    assert found.step == 100_000_000


def test_a_manifest_field_with_a_reserved_name_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="'files' of its own"):
        Checkpoints(folder).write(1, fill_with(1), manifest={"files": 3})
