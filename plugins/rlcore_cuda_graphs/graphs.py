"""CUDA graphs, and a check that a function does nothing that a CUDA graph cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

WARM_UPS = 3
"""Runs before the capture, in which libraries choose kernels and allocate workspaces."""
HOST_READS = {
    "_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "item", "masked_select", "nonzero",
    "unique_consecutive", "unique_dim",
}  # fmt: skip
"""ATen operations whose result, or its shape, the host must know before it can go on."""


class Graph(Protocol):
    """A captured function that takes no arguments and returns tensors, the same ones at every replay."""

    def capture(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Capture `call`, running it more than once if needed, and return the tensors that every replay writes."""
        ...

    def replay(self) -> None:
        """Repeat all operations of `call` on the present contents of its tensors."""
        ...


class CudaGraph:
    """Capture and replay with `torch.cuda.CUDAGraph`.

    Args:
        pool: memory shared by graphs of which one at a time runs, `torch.cuda.graph_pool_handle()`.
    """

    def __init__(self, pool: Any) -> None:
        self._graph, self._pool = torch.cuda.CUDAGraph(), pool

    def capture(self, call: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
        """Run `call` a few times on a side stream, as CUDA graphs require, then capture it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        # thread_local: GPU work of other threads, such as a reward model's, is not captured.
        with torch.cuda.graph(self._graph, pool=self._pool, capture_error_mode="thread_local"):
            return call()

    def replay(self) -> None:
        """Launch the graph."""
        self._graph.replay()


def make_cuda_graphs() -> Callable[[], Graph]:
    """Return a factory of graphs that share their memory."""
    pool = torch.cuda.graph_pool_handle()
    return lambda: CudaGraph(pool)


class HostReads(TorchDispatchMode):
    """List the operations that make the host wait for the device, which no graph can hold, while it is open.

    They are recognised by name, so a run on a CPU finds them too.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if reads_on_host(func, args):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def reads_on_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Return whether the host has to wait for the values of the arguments of `func`, an operation of ATen."""
    name = func.overloadpacket.__name__
    if name in HOST_READS or (name == "repeat_interleave" and func._overloadname == "Tensor"):  # noqa: SLF001
        return True
    masks = args[1] if name in ("index", "index_put", "index_put_", "_index_put_impl_") else ()
    # Assigning one number where a mask is True needs no indices on the host.
    is_fill = name.startswith(("index_put", "_index_put")) and args[2].numel() == 1
    return not is_fill and any(mask is not None and mask.dtype in (torch.bool, torch.uint8) for mask in masks)
