"""A Python with verifiers; the taskset `arithmetic_tasks` is importable in the tests of this folder.

The Python is that of a virtual environment in a temporary folder. Set VERIFIERS_PYTHON to one that has verifiers to
save the minutes of its installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.fixture(scope="session")
def verifiers_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    given = os.environ.get("VERIFIERS_PYTHON")
    if given:
        return given
    folder = tmp_path_factory.mktemp("verifiers")
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "verifiers>=0.4,<0.5"]
    subprocess.run(command, check=True, timeout=900)
    return python
