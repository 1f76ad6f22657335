"""Make known_defects.py and the task of the examples importable, and write the teacher that tables name."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "docs" / "examples")]

from small_teacher import TEACHER, write_teacher  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def _teacher() -> Iterator[None]:
    write_teacher()
    yield
    shutil.rmtree(Path(TEACHER).parent)
