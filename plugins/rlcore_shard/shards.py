"""The weights of a model of which each process keeps a part: completed for everything that needs no gradient."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

__all__ = ["Cut", "Shards"]


@attrs.frozen(eq=False)
class Cut:
    """How a strategy of sharding divides tensors among processes.

    Attributes:
        join: returns the whole tensor of which this process keeps a part; collective.
        copy: `copy(part, whole)` overwrites this process's part of a tensor by that of another; not collective.
        reads_rows: whether `copy` takes slices of a file too (`safetensors.safe_open`), of which it reads rows.
        device: the device of this process, by which processes exchange tensors.
    """

    join: Callable[[Tensor], Tensor]
    copy: Callable[[Tensor, Any], None]
    reads_rows: bool = False
    device: str | torch.device = "cpu"


class Shards:
    """The parts that this process keeps, and the module whose parameters `gather` completes and `drop` empties.

    A forward pass without gradients may run a number of times that differs between processes, because it depends on the
    lengths of a process's own sequences. It therefore runs on a module whose weights are complete: all, or in a context
    `by_block` those of one block. The parts are what the optimizer changes. The parameters of the module are the same
    objects all the time, with no elements while they are empty: whatever reads them then fails with an error about
    shapes.

    Args:
        parameters: the parameters of the module, complete, by name.
        parts: for each of them the part that this process keeps, in the same order.
        cut: joins and overwrites the parts.
        stay: keep the memory of the whole weights, at the same addresses.

    Attributes:
        parts: see above.
        cut: see above.
        stay: see above.
        parameters: see above.
        shapes: shapes of the whole parameters, by name.
        is_lent: whether a context `by_block` completes the parameters.
        is_whole: whether the parameters are complete and equal to the parts, on every process.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], parts: list[Tensor], cut: Cut, *, stay: bool = False
    ) -> None:
        self.parts, self.is_whole, self.cut = parts, True, cut
        self.parameters, self.stay, self.is_lent = dict(parameters), stay, False
        self.shapes = {name: parameter.shape for name, parameter in self.parameters.items()}
        self._own = dict(zip(self.parameters, parts, strict=True))

    @torch.no_grad()
    def stream(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and value of each whole tensor, one at a time; every process iterates to the end."""
        for (name, parameter), part in zip(self.parameters.items(), self.parts, strict=True):
            yield name, parameter.detach() if self.is_whole else self.cut.join(part)

    def gather(self) -> None:
        """Complete the parameters, unless they are or a context `by_block` does; collective."""
        if self.is_whole or self.is_lent:
            return
        for name, tensor in self.stream():
            self.fill(name, tensor)
        self.is_whole = True

    def by_block(self, learner: object, shards: Sequence[Shards]) -> AbstractContextManager[None]:
        """Return the context `rlcore_shard.block_passes.by_block`."""
        from rlcore_shard.block_passes import by_block

        return by_block(learner, shards)

    def named_parts(self, names: Container[str]) -> list[tuple[str, Tensor]]:
        """Return the parts of some of the parameters by name, in the order of all."""
        return [(name, part) for name, part in zip(self.parameters, self.parts, strict=True) if name in names]

    def complete(self, name: str, whole: Tensor) -> None:
        """Complete one parameter until the next `drop` or the end of `emptied`, in the CPU's memory."""
        self.fill(name, whole if self.stay else whole.cpu())

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Free at the end what `complete` has filled inside the context."""
        try:
            yield
        finally:
            if not self.is_whole:
                self.free(*self.parameters)

    @contextmanager
    def gathered(self, *, here: bool) -> Iterator[None]:
        """Complete the parameters inside the context, in the CPU's memory, where `here` is true; collective."""
        if self.is_whole:
            yield
            return
        with self.emptied():
            for name, tensor in self.stream():
                if here:
                    self.complete(name, tensor)
            yield

    def drop(self) -> None:
        """Free the memory of the whole weights."""
        if self.is_whole:
            self.is_whole = False
            self.free(*self.parameters)

    @torch.no_grad()
    def scatter(self) -> None:
        """Overwrite the parts by the parameters, which have been changed in the same way on every process."""
        for parameter, part in zip(self.parameters.values(), self.parts, strict=True):
            self.cut.copy(part, parameter)

    @torch.no_grad()
    def load(self, part: Tensor, saved: Any) -> None:
        """Overwrite a part by a whole tensor, or by rows of a slice of a file that contains it."""
        self.cut.copy(part, saved if self.cut.reads_rows else saved[...])

    def fill(self, name: str, whole: Tensor) -> None:
        """Complete one parameter."""
        if self.stay:
            self.parameters[name].data.copy_(whole)
        else:
            self.parameters[name].data = whole

    def free(self, *names: str) -> None:
        """Free the memory of parameters, unless it stays."""
        for name in () if self.stay else names:
            part = self._own[name]
            self.parameters[name].data = torch.empty(0, dtype=part.dtype, device=part.device)
