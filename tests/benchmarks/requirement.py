"""What a case needs that may be missing: texts, another library, a GPU. Its programs run without rlcore too."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).resolve().parent


class Unavailable(Exception):
    """Error: a requirement of a case is missing. The message names it and how to get it."""
