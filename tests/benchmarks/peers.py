"""Location of the compared libraries: a separate environment, created by `make bench-peers`."""

from __future__ import annotations

import os
from pathlib import Path

from duel import HERE, Unavailable

DEFAULT = HERE.parents[1] / ".venv-peers" / "bin" / "python"


def peers_python() -> str:
    """Return the interpreter of that environment; the variable PEERS_PYTHON overrides it.

    Raises:
        Unavailable: the environment does not exist.
    """
    python = Path(os.environ.get("PEERS_PYTHON", DEFAULT))
    if not python.exists():
        raise Unavailable(f"no {python}: `make bench-peers` makes it (TRL from PyPI, see tests/benchmarks/peers.txt)")
    return str(python)
