"""The bytes that tensors hold while code runs, and their peak."""

from __future__ import annotations

import weakref
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rlcore_plan.heap import Heap


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
