"""Make this folder's modules importable, and start processes for the tests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "core")]  # the core's tests have dists.py

from e2e_processes import run_process  # noqa: E402  importable from here on


@pytest.fixture
def child(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train a scenario in a new process: child("sft_config", "run", {"run": {"steps": 3}}, "SIGTERM@2")."""

    def start(name: str, run: str, changes: dict[str, Any], *stop: str) -> subprocess.CompletedProcess[str]:
        return run_process(
            [sys.executable, str(HERE / "child.py"), name, str(tmp_path), run, json.dumps(changes), *stop]
        )

    return start


@pytest.fixture
def two_ranks(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Do the same in two processes that work together."""

    def start(name: str, run: str, changes: dict[str, Any] | Path, *stop: str) -> subprocess.CompletedProcess[str]:
        what = str(changes) if isinstance(changes, Path) else json.dumps(changes)
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return run_process([*launch, str(HERE / "child.py"), name, str(tmp_path), run, what, *stop])

    return start
