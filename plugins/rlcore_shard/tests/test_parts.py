"""Tests of tensors that all processes of a run write."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.errors import CheckpointError, ConfigError
from rlcore_shard import parallel_files as parts
from rlcore_shard.parallel_files import StagedParts, check_shared


def stage(folder: Path, *others: tuple[list[str], dict[str, Any], OSError | None]) -> StagedParts:
    """Write nothing, beside another process that sees files, has computed entries of them, or has failed."""
    ranks: Any = SimpleNamespace(rank=0, world=2, translated=nullcontext, gather=lambda own: [*own, *others])
    return parts.stage(folder, ranks, weights={}, state={})


def test_files_that_another_machine_keeps_to_itself_make_no_checkpoint(tmp_path: Path) -> None:
    stage(tmp_path).move(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not see trainer.dcp/shard-2.* all machines share"):
        stage(tmp_path, (["trainer.dcp/shard-2"], {}, None)).move(tmp_path)
    with pytest.raises(OSError, match="Input/output"):
        stage(tmp_path, ([], {}, OSError(5, "Input/output error"))).move(tmp_path)


def test_a_folder_that_another_machine_does_not_see_is_refused_before_the_first_step(tmp_path: Path) -> None:
    ranks: Any = SimpleNamespace(
        rank=0, world=2, is_main=True, on_main=lambda make: make(), gather=lambda own: [*own, 1]
    )
    with pytest.raises(ConfigError, match=r"process 1 does not see .* or set checkpoint.format=safetensors"):
        check_shared(tmp_path, ranks)
    ranks.gather = lambda own: own
    check_shared(tmp_path, ranks)
    assert list(tmp_path.iterdir()) == []


def test_processes_divide_the_checksums_of_files_among_them(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).write_text(name)
    staged = stage(tmp_path, (["a", "b", "c"], {"b": {"sha256": "theirs", "bytes": 1}}, None))
    assert staged.entries.keys() == {"a", "b", "c"}
    assert staged.entries["b"]["sha256"] == "theirs"
    assert staged.entries["c"] == {
        "sha256": "2e7d2c03a9507ae265ecf5b5356885a53393a2029d241394997265a1a25aefc6", "bytes": 1
    }  # fmt: skip
