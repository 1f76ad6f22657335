"""The fixture `python`, which runs Python on this checkout; conftest.py of tests/ and of plugins/ import it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run Python in the test's folder on this checkout, without the RLCORE_ variables of this process."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RLCORE_")}
        return subprocess.run(
            [sys.executable, *arguments], env={**kept, "PYTHONPATH": str(ROOT), **environment},
            cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        )  # fmt: skip

    return run
