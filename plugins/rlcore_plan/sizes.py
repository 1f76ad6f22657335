"""Parsing and formatting of amounts of memory; light."""

from __future__ import annotations

import re

from rlcore.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Return the bytes of an amount such as `24GB`, `80GiB` or a plain number of bytes.

    Raises:
        ConfigError: the text is not an amount of memory.
    """
    found = _SIZE.fullmatch(text)
    size = int(float(found[1]) * UNITS[found[2].lower()]) if found and found[2].lower() in UNITS else 0
    if size <= 0:
        raise ConfigError(f"--device-memory {text!r}: must be an amount of memory, such as 24GB, 80GiB or 512MB")
    return size


def write_size(size: int) -> str:
    """Return a number of bytes as text in GB, MB or kB."""
    if abs(size) >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if abs(size) >= 1e5 else f"{size / 1e3:.1f} kB"
