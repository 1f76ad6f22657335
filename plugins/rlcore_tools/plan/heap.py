"""The memory that the C library's malloc keeps of freed tensors, measured by reserving blocks of their sizes.

A block freed between blocks that stay leaves a hole: malloc reuses it for later blocks that fit, and does not return it
to the system. glibc leaves many holes, because its mmap threshold (mallopt(3), M_MMAP_THRESHOLD) rises with each mapped
block that is freed. Their size follows from the order of block sizes alone. Reserved blocks are never written to: they
take address space and no memory.

Also in this file: the bytes that tensors hold while code runs, and their peak.
"""

from __future__ import annotations

import ctypes
import platform
import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


class LiveBytes(TorchDispatchMode):
    """A dispatch mode that counts the bytes each operation of torch allocates, until they are freed.

    Views count once, as the storage they share. Memory that a kernel allocates and frees inside, or that an allocator
    keeps, is not counted.

    Args:
        heap: reserves a block for every fake tensor, as malloc would for a real one.

    Attributes:
        now: bytes held at present.
        peak: largest number of bytes since `restart`.
    """

    def __init__(self, heap: Heap | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak, self.heap = 0, 0, heap
        self._known: dict[int, weakref.ref[Any]] = {}

    def restart(self) -> int:
        """Reset the peak to the bytes held now, and return them."""
        self.peak = self.now
        if self.heap is not None:
            self.heap.restart()
        return self.now

    @property
    def holes(self) -> int:
        """Return the bytes of freed tensors that malloc would hold beyond the peak."""
        return 0 if self.heap is None else max(0, self.heap.peak - self.peak)

    def unreplayed(self) -> AbstractContextManager[None]:
        """Reserve no blocks for fake tensors while the context is open."""
        return nullcontext() if self.heap is None else self.heap.closed()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, and count what it returns."""
        return self.counted(func(*args, **(kwargs or {})))

    def counted(self, out: Any) -> Any:
        """Count the tensors in what an operation has returned, and return it."""
        for leaf in (out,) if isinstance(out, Tensor) else tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._count(leaf)
        return out

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()  # noqa: SLF001  identifies the storage
        if not size or key in self._known:
            return

        self.now += size
        self.peak = max(self.peak, self.now)
        is_real = storage.device.type != "meta"
        block = None if is_real or self.heap is None else self.heap.take(size, self.now)

        def freed(_: object) -> None:
            del self._known[key]
            self.now -= size
            if block is not None and self.heap is not None:
                self.heap.give(block)

        self._known[key] = weakref.ref(storage, freed)


def held(*tensors: Tensor | None) -> int:
    """Return the bytes of the tensors' storages, each storage counted once."""
    storages = [tensor.untyped_storage() for tensor in tensors if tensor is not None]
    by_id = {storage._cdata: storage.nbytes() for storage in storages}  # noqa: SLF001  identifies the storage
    return sum(by_id.values())


def parameters_of(module: torch.nn.Module | None) -> list[Tensor]:
    """List the parameters and buffers of a module, trainable or not."""
    return [] if module is None else [*module.parameters(), *module.buffers()]
