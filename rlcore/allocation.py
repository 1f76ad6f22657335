"""Have the C library give freed memory back to the system."""

from __future__ import annotations

import ctypes
import os
import platform

MMAP_THRESHOLD, LARGE = -3, 1 << 20
"""glibc's number for the bound of what is asked of the system by itself, and the bound that is set, in bytes."""


def hand_back_freed() -> None:
    """Have every block of `LARGE` bytes or more handed back to the system as soon as it is freed, in this process.

    By itself glibc raises that bound to the largest block it has seen freed, up to 32 MiB, and the holes it then leaves
    between tensors that come and go can take more than the tensors do. The price is that the system clears each new
    block. A bound that the environment sets stands; other C libraries are left alone.
    """
    is_set = "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not is_set:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)
