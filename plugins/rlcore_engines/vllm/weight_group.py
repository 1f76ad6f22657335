"""The process group of a run and the workers of one server, through which weights are broadcast.

Both sides use this file, the workers in vLLM's environment: it imports nothing but torch.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

BUCKET = 2**28
"""Bytes from which a further bucket is begun."""
ALIGNMENT = 16
Entry = Sequence[Any]
"""A tensor in a bucket: its name, the name of its dtype, its shape, and its first byte."""


def plan(weights: Mapping[str, Tensor], limit: int = BUCKET) -> list[list[Entry]]:
    """Distribute tensors among buckets of at most `limit` bytes, or of one tensor."""
    buckets, end = list[list[Entry]](), limit + 1
    for name, value in weights.items():
        if end + value.nbytes > limit:
            buckets.append([])
            end = 0
        buckets[-1].append((name, str(value.dtype).removeprefix("torch."), list(value.shape), end))
        end += math.ceil(value.nbytes / ALIGNMENT) * ALIGNMENT
    return buckets


def pack(bucket: Iterable[Entry], weights: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """Return the bytes of a bucket's tensors, uint8[N]."""
    buffer = _buffer(bucket, device)
    for (_, place), entry in zip(_places(bucket, buffer), bucket, strict=True):
        place.copy_(weights[entry[0]])
    return buffer


def _buffer(bucket: Iterable[Entry], device: torch.device) -> Tensor:
    size = max(start + _nbytes(dtype, shape) for _, dtype, shape, start in bucket)
    return torch.empty(size, dtype=torch.uint8, device=device)


def _places(bucket: Iterable[Entry], buffer: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the names of a bucket's tensors, and the tensors as views of its bytes."""
    for name, dtype, shape, start in bucket:
        yield name, buffer[start : start + _nbytes(dtype, shape)].view(getattr(torch, dtype)).view(shape)


def _nbytes(dtype: str, shape: Sequence[int]) -> int:
    return math.prod(shape) * getattr(torch, dtype).itemsize  # type: ignore[no-any-return]  # an int


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine that another one sees."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as found:
        found.connect(address)  # nothing is sent
        return str(found.getsockname()[0])


def open_store(timeout_s: float) -> TCPStore:
    """Open the store in which the members of groups find one another, on a free port of this machine."""
    return TCPStore("127.0.0.1", 0, None, is_master=True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False)


class WeightGroup:
    """A process group apart from the default one. Rank 0 is the run; the others are the workers of one server.

    Args:
        store: where the members find one another.
        name: name of the group, unique in the store.
        rank: this process.
        size: number of members.
        backend: `nccl` or `gloo`.
        timeout_s: longest time for a tensor, and for all to join.
        address: this machine's address, for gloo.
    """

    def __init__(
        self, store: Store, name: str, *, rank: int, size: int, backend: str, timeout_s: float, address: str
    ) -> None:
        self.name, self._rank, self._size, self._num_updates = name, rank, size, 0
        self._store, timeout = PrefixStore(name, store), timedelta(seconds=timeout_s)
        self.device = torch.device("cpu") if backend == "gloo" else torch.device("cuda", torch.cuda.current_device())
        self._group: Any
        if backend == "gloo":
            gloo: Any = ProcessGroupGloo
            options = gloo._Options()  # noqa: SLF001  torch has no other name for it
            options._timeout = timeout  # noqa: SLF001
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
            self._group = ProcessGroupGloo(self._store, rank, size, options)
        else:
            from torch.distributed import ProcessGroupNCCL

            choices = ProcessGroupNCCL.Options()
            choices._timeout = timeout  # noqa: SLF001
            self._group = ProcessGroupNCCL(self._store, rank, size, choices)

    def receive(self, buckets: Iterable[Sequence[Entry]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the names and tensors that rank 0 broadcasts, a bucket at a time."""
        self._num_updates += 1
        self._store.set(f"ready-{self._num_updates}-{self._rank}", "")
        for bucket in buckets:
            buffer = _buffer(bucket, self.device)
            self.broadcast(buffer).wait()
            yield from _places(bucket, buffer)

    def begin_update(self) -> None:
        """Count an update; rank 0 sends once `are_ready` is true."""
        self._num_updates += 1

    def are_ready(self) -> bool:
        """Return whether all others wait for the tensors of the present update."""
        return self._store.check([f"ready-{self._num_updates}-{rank}" for rank in range(1, self._size)])

    def broadcast(self, buffer: Tensor) -> Any:
        """Begin to broadcast from rank 0, and return the work that can be waited for."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        return self._group.broadcast([buffer], options)

    def close(self) -> None:
        """Leave the group; a broadcast under way fails."""
        if self.device.type == "cuda":
            self._group.abort()
        self._group = None


def joins(store: Store, name: str, rank: int) -> None:
    """Tell rank 0 that this process is about to join a group. Rank 0 joins once all others have told it so."""
    store.set(f"{name}-joins-{rank}", "")


def all_join(store: Store, name: str, size: int) -> bool:
    """Return whether all but rank 0 are about to join."""
    return store.check([f"{name}-joins-{rank}" for rank in range(1, size)])
