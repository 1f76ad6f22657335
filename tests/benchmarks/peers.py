"""Where the libraries live that rlcore is measured beside: an environment of their own, made by `make bench-peers`."""

from __future__ import annotations

import os
from pathlib import Path

from duel import HERE, Unavailable

DEFAULT = HERE.parents[1] / ".venv-peers" / "bin" / "python"


def peers_python() -> str:
    """Return the interpreter of that environment; the variable PEERS_PYTHON names another.

    Raises:
        Unavailable: there is none.
    """
    python = Path(os.environ.get("PEERS_PYTHON", DEFAULT))
    if not python.exists():
        raise Unavailable(f"no {python}: `make bench-peers` makes it (TRL from PyPI, see tests/benchmarks/peers.txt)")
    return str(python)
