"""Make this folder's modules importable, and provide fixtures that start training processes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_python import WarmPython

HERE = Path(__file__).parent
CHILD = str(HERE / "child.py")
sys.path[:0] = [str(HERE), str(HERE.parent / "core")]  # dists.py is with the core's tests

from e2e_processes import TIMEOUT_S, inherited, run_process, run_two_ranks  # noqa: E402  importable from here on


@pytest.fixture
def child(tmp_path: Path, warm_python: WarmPython) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train a scenario in a new process: child("sft_config", "run", {"run": {"steps": 3}}, "SIGTERM@2")."""

    def start(name: str, run: str, changes: dict[str, Any], *stop: str) -> subprocess.CompletedProcess[str]:
        arguments = [CHILD, name, str(tmp_path), run, json.dumps(changes), *stop]
        return warm_python.run(arguments, cwd=Path.cwd(), environment=inherited(), timeout_s=TIMEOUT_S)

    return start


@pytest.fixture
def two_ranks(tmp_path: Path, warm_python: WarmPython) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train a scenario in two distributed processes, with torchrun's environment variables."""

    def start(name: str, run: str, changes: dict[str, Any] | Path) -> subprocess.CompletedProcess[str]:
        what = str(changes) if isinstance(changes, Path) else json.dumps(changes)
        return run_two_ranks(warm_python, [CHILD, name, str(tmp_path), run, what])

    return start


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Train a scenario with torchrun itself, in new interpreters with different hash seeds."""

    def start(name: str, run: str, changes: dict[str, Any] | Path, *stop: str) -> subprocess.CompletedProcess[str]:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        what = str(changes) if isinstance(changes, Path) else json.dumps(changes)
        return run_process([*launch, CHILD, name, str(tmp_path), run, what, *stop])

    return start
