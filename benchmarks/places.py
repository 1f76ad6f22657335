"""Where things are, and the error of a case that lacks something: texts, another library, a GPU."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
"""The checkout of the repository: the suite is run in one."""
EXAMPLES = ROOT / "docs" / "examples"


class Unavailable(Exception):
    """Error: a requirement of a case is missing. The message names it and how to get it."""
