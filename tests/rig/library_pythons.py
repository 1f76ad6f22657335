"""Pythons of their own for libraries of environments that bring a hundred packages, or conflict with one another."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

UV = Path(sysconfig.get_path("scripts")) / "uv"
"""It installs a hundred packages in seconds; where it is missing or fails, pip takes a minute or two."""


def library_python(name: str, requirement: str, folder: Path) -> str:
    """Return a Python that has a library of PyPI, and nothing of rlcore.

    Args:
        name: the library; the environment variable NAME_PYTHON, such as OPENENV_PYTHON, names a Python that has it.
        requirement: what is installed otherwise.
        folder: a folder that does not exist yet, for a virtual environment.
    """
    if given := os.environ.get(f"{name.upper()}_PYTHON"):
        return given
    python = folder / "bin" / "python"
    make = [str(UV), "venv", "--quiet", "--python", sys.executable, str(folder)]
    install = [str(UV), "pip", "install", "--quiet", "--python", str(python), requirement]
    if not (UV.exists() and _succeeds(make) and _succeeds(install)):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True, timeout=300)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        subprocess.run(pip, check=True, timeout=900)
    return str(python)


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, check=False, timeout=600).returncode == 0
