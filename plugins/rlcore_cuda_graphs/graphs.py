"""Record what a function of static tensors does to a GPU, so that it can be done again without running its Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WARM_UPS = 3
"""Runs before the recording, in which libraries choose kernels and allocate what they keep."""
HOST_READS = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "item", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
"""Operations whose result, or its shape, the host must know before it can go on."""


class Graph(Protocol):
    """A recording of a function that takes nothing and returns tensors, always the same ones."""

    def record(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Record `call`, which may be run more than once for it, and return the tensors every replay writes to."""
        ...

    def replay(self) -> None:
        """Do all that `call` did to tensors, with what they hold now."""
        ...


class CudaGraph:
    """Record and replay with a CUDA graph.

    Args:
        pool: memory that graphs share of which one at a time runs, `torch.cuda.graph_pool_handle()`.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def record(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run `call` a few times on a stream of its own, as recording asks for, then record it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        # What other threads do to the GPU meanwhile, such as a reward model's work, is not a part of the recording.
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            return call()

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


def make_cuda_graphs() -> Callable[[], Graph]:
    """Return a maker of graphs that share their memory."""
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class HostReads(TorchDispatchMode):
    """List the operations that make the host wait for the device, and that no graph can record, while it is open.

    They are told by name, so that a run on a CPU finds them too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_on_host(func, args):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def reads_on_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Tell whether the host has to wait for what `func`, an operation of aten, finds in its arguments."""
    name = func.overloadpacket.__name__
    if name in HOST_READS or (name == "repeat_interleave" and func._overloadname == "Tensor"):  # noqa: SLF001
        return True
    masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
    # An assignment of one number where a mask is True is done without looking where that is.
    is_fill = name.startswith(("index_put", "_index_put")) and args[2].numel() == 1
    return not is_fill and any(mask is not None and mask.dtype in (torch.bool, torch.uint8) for mask in masks)
