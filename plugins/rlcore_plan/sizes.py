"""Parsing and formatting of amounts of memory; light."""

from __future__ import annotations

import re

from rlcore.errors import ConfigError

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def parse_size(text: str, where: str = "") -> int:
    """Return the bytes of an amount such as `24GB`, `80GiB` or a plain number of bytes.

    Args:
        text: the amount.
        where: the option and its value, for the error.

    Raises:
        ConfigError: the text is not an amount of memory.
    """
    found = _SIZE.fullmatch(text)
    size = int(float(found[1]) * UNITS[found[2].lower()]) if found and found[2].lower() in UNITS else 0
    if size <= 0:
        given = where or f"--device-memory {text!r}"
        raise ConfigError(f"{given}: must be an amount of memory, such as 24GB, 80GiB or 512MB")
    return size


def write_size(size: int) -> str:
    """Return a number of bytes as text in GB, MB or kB."""
    if abs(size) >= 1e9:
        return f"{size / 1e9:.2f} GB"
    return f"{size / 1e6:.1f} MB" if abs(size) >= 1e5 else f"{size / 1e3:.1f} kB"


_RATES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_RATE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)(?:e(\d+))?\s*([kmgtp]?)(?:b|flops?)?(?:/s)?\s*", re.IGNORECASE)


def parse_rate(option: str, text: str) -> float:
    """Return a number for each second, from a text such as `989T`, `45GB/s` or `3.35e12`.

    Raises:
        ConfigError: the text is not a number above 0.
    """
    found = _RATE.fullmatch(text)
    rate = float(found[1]) * 10 ** int(found[2] or 0) * _RATES[found[3].lower()] if found else 0.0
    if rate <= 0:
        raise ConfigError(f"{option} {text!r}: must be a number above 0 for each second, such as 989T or 45GB")
    return rate


def parse_share(option: str, text: str) -> float:
    """Return a share, from a text such as `0.4`.

    Raises:
        ConfigError: the text is not a number from 0 to 1.
    """
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1 or (share == 0 and option != "--overlap"):
        low = "from 0" if option == "--overlap" else "above 0 and"
        raise ConfigError(f"{option} {text!r}: must be a share {low} to 1, such as 0.4".replace("and to", "and up to"))
    return share


_DEVICES = re.compile(r"\s*(\d+)\s*[xX]\s*(\S.*)")


def parse_devices(text: str) -> tuple[int, int]:
    """Return the number of devices of a machine and the bytes of each, from a text such as `8x80GB`.

    Raises:
        ConfigError: the text has another form.
    """
    found = _DEVICES.fullmatch(text)
    if not found or not int(found[1]):
        raise ConfigError(
            f"--devices {text!r}: must be the number of devices of one machine, at least 1, and the memory of each, "
            "such as 8x80GB"
        )
    size = parse_size(found[2], f"--devices {text!r}")
    if found[2].strip().isdecimal() and size < 10**6:
        raise ConfigError(f"--devices {text!r}: has {size} bytes for each device: add a unit, such as {size}GB")
    return int(found[1]), size


def write_count(number: int, noun: str) -> str:
    """Return a number of things as text, such as `2 devices`."""
    return f"{number} {noun}{'s' * (number != 1)}"
