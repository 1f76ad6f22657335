"""Location of the compared libraries: a separate environment, created by `make bench-peers`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from benchmarks.places import ROOT, Unavailable

DEFAULT = ROOT / ".venv-peers" / "bin" / "python"
MEMORY: dict[str, Literal["more", "less"]] = {"peak_rss_mb": "less", "peak_above_imports_mb": "less"}
"""Figures of memory: the whole process, and what exceeds the imported libraries."""
MEMORY_GOALS = dict.fromkeys(MEMORY, 0.6)


def peers_python() -> str:
    """Return the interpreter of that environment; the variable PEERS_PYTHON overrides it.

    Raises:
        Unavailable: the environment does not exist.
    """
    python = Path(os.environ.get("PEERS_PYTHON", DEFAULT))
    if not python.exists():
        raise Unavailable(f"no {python}: `make bench-peers` makes it (TRL from PyPI, see peers.txt beside this suite)")
    return str(python)
