"""A Python with verifiers; the taskset `arithmetic_tasks` is importable in the tests of this folder.

The Python is that of a virtual environment in a temporary folder. Set VERIFIERS_PYTHON to one that has verifiers to
save the minutes of its installation.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from library_pythons import library_python

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def verifiers_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return library_python("verifiers", "verifiers>=0.4,<0.5", tmp_path_factory.mktemp("pythons") / "verifiers")
