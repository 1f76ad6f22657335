"""Make `distill_making` importable for the tests of this folder, and write the teachers that they name."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

sys.path.insert(0, str(Path(__file__).parent))

from distill_making import TEACHERS, write_teachers


@pytest.fixture(scope="session", autouse=True)
def _teachers() -> Iterator[None]:
    write_teachers()
    yield
    shutil.rmtree(TEACHERS)
