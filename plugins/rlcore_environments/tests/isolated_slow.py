"""A slow tool for processes of their own."""

from __future__ import annotations

import time


def wait(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"
