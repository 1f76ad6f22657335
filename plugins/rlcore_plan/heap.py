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
"""Alignment of torch's CPU tensors, in bytes."""


@attrs.frozen
class Block:
    """A reserved block: its address, and its size if malloc obtained it by mmap, else 0."""

    address: int
    mapped: int


class Heap:
    """A replay of a run's tensor allocations through malloc, which measures tensors and holes together.

    Without glibc's `mallinfo2` nothing is reserved and no holes are counted.

    Attributes:
        peak: largest number of bytes since `restart` that the process would hold for tensors and holes between them.
        is_open: whether blocks are reserved.
        has_failed: whether an allocation failed, so that the holes are underestimated.
    """

    def __init__(self) -> None:
        self.peak, self._most, self._mapped = 0, 0, 0
        self.is_open, self.has_failed = _LIBRARY is not None, False
        if _LIBRARY is not None:
            self._begin, self._free = _LIBRARY.sbrk(0), _LIBRARY.mallinfo2().fordblks

    def restart(self) -> None:
        """Reset the peak."""
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
        """Reserve a block of `size` bytes; return None if blocks are not reserved or the allocation fails.

        Args:
            size: bytes of the new tensor.
            held: bytes of all tensors, the new one included.
        """
        if not self.is_open:
            return None
        address = ctypes.c_void_p()
        if _LIBRARY.posix_memalign(ctypes.byref(address), ALIGNMENT, size) or address.value is None:
            self.has_failed = True
            return None
        end = _LIBRARY.sbrk(0)
        mapped = size if address.value > end else 0  # mmapped blocks lie above the heap
        self._mapped += mapped
        if end - self._begin + self._mapped > self._most:
            self._most = end - self._begin + self._mapped
            self.peak = max(self.peak, held + _LIBRARY.mallinfo2().fordblks - self._free)
        return Block(address.value, mapped)

    def give(self, block: Block) -> None:
        """Free a block."""
        self._mapped -= block.mapped
        _LIBRARY.free(block.address)


class _Account(ctypes.Structure):
    """glibc's heap statistics: `struct mallinfo2` of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
        )
    ]  # fmt: skip


def _library() -> Any:
    """Return the C library if it is glibc 2.33 or later, which has `mallinfo2`; None otherwise."""
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
