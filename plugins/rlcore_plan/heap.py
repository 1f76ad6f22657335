"""The memory that the C library's malloc keeps of freed tensors, measured by reserving blocks of their sizes.

A block freed between blocks that stay leaves a hole: malloc reuses it for later blocks that fit, and does not return it
to the system. glibc leaves many holes, because its mmap threshold (mallopt(3), M_MMAP_THRESHOLD) rises with each mapped
block that is freed. Their size follows from the order of block sizes alone. Reserved blocks are never written to: they
take address space and no memory.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

ALIGNMENT = 64
"""Bytes on whose multiples torch has tensors begin on a CPU."""


@attrs.frozen
class Block:
    """A reserved block: its address, and its bytes if the system mapped it by itself, else 0."""

    place: int
    mapped: int


class Heap:
    """Reserve a block for every tensor that would be made, and note the most that tensors and holes take together.

    Where the C library does not say how its heap lies nothing is reserved, and no holes are known of.

    Attributes:
        peak: bytes that the process would hold for tensors, holes between them included, at most since `restart`.
        is_open: blocks are reserved.
        has_failed: there was no room for some block, so that what is known of holes is too little.
    """

    def __init__(self) -> None:
        self.peak, self._most, self._mapped = 0, 0, 0
        self.is_open, self.has_failed = _LIBRARY is not None, False
        if _LIBRARY is not None:
            self._begin, self._free = _LIBRARY.sbrk(0), _LIBRARY.mallinfo2().fordblks

    def restart(self) -> None:
        """Forget the peak."""
        self.peak, self._most = 0, 0

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Reserve nothing while the context is open."""
        was_open, self.is_open = self.is_open, False
        try:
            yield
        finally:
            self.is_open = was_open

    def take(self, size: int, held: int) -> Block | None:
        """Reserve a block of `size` bytes, with which tensors hold `held` bytes; None where there is none to be had."""
        if not self.is_open:
            return None
        place = ctypes.c_void_p()
        if _LIBRARY.posix_memalign(ctypes.byref(place), ALIGNMENT, size) or place.value is None:
            self.has_failed = True
            return None
        end = _LIBRARY.sbrk(0)
        mapped = size if place.value > end else 0  # what is asked for by itself lies above the heap
        self._mapped += mapped
        if end - self._begin + self._mapped > self._most:
            self._most = end - self._begin + self._mapped
            self.peak = max(self.peak, held + _LIBRARY.mallinfo2().fordblks - self._free)
        return Block(place.value, mapped)

    def give(self, block: Block) -> None:
        """Free a block."""
        self._mapped -= block.mapped
        _LIBRARY.free(block.place)


class _Account(ctypes.Structure):
    """What glibc says of its heap: `struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def _library() -> Any:
    """Return the C library if it is a glibc that accounts for its heap in numbers of 64 bits, which 2.33 brought."""
    name, version = platform.libc_ver()
    if name != "glibc" or [int(part) for part in version.split(".")[:2]] < [2, 33]:
        return None
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = _Account
    library.sbrk.restype, library.sbrk.argtypes = ctypes.c_ssize_t, [ctypes.c_ssize_t]
    library.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    return library


_LIBRARY = _library()
