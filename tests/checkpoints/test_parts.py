"""Tests of tensors that all processes of a run write."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlcore.checkpoints.parts import StagedParts
from rlcore.errors import CheckpointError


def test_files_that_another_machine_keeps_to_itself_make_no_checkpoint(tmp_path: Path) -> None:
    for others, words in (([], ""), (["trainer.dcp/shard-2"], "does not see trainer.dcp/shard-2.* all machines share")):
        ranks: Any = SimpleNamespace(
            rank=0, world=2, translated=nullcontext, gather=lambda own, more=others: own + more
        )
        staged = StagedParts.write(tmp_path / "staged", ranks, weights={}, state={})
        with pytest.raises(CheckpointError, match=words) if words else nullcontext():
            staged.move(tmp_path / "checkpoint")
