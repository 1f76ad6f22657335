"""Learners whose weights are divided among processes, and what the rest of a run calls of any learner."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, TypeVar

from torch import Tensor, detach, nn
from torch.distributed.tensor import DTensor

from rlcore.protocols import Divisible, Learner

T = TypeVar("T")


class TensorStream:
    """Whole tensors that one process writes, assembled one after another from the parts of all processes.

    Joining is collective, so every process joins the same parts in the same order: the process that writes calls
    `take`, and `finish` when it has finished or failed; the others call `finish` alone. No process holds more than one
    whole tensor.

    Args:
        parts: this process's parts of the tensors, in the order in which they are written.
        join: returns the whole tensor of a part; collective.
    """

    def __init__(self, parts: Iterable[Tensor], join: Callable[[Tensor], Tensor] = detach) -> None:
        self._pending, self._join = deque(parts), join

    def take(self, part: Tensor) -> Tensor:
        """Return the whole tensor of a part; those that come before it in the order are left out.

        Raises:
            ValueError: the part is not among those that remain.
        """
        while self._pending:
            each = self._pending.popleft()
            whole = self._join(each)
            if each is part:
                return whole
        raise ValueError(
            f"a tensor of shape {list(part.shape)} is written out of the order in which tensors are joined"
        )

    def finish(self) -> None:
        """Join the parts that remain."""
        while self._pending:
            self._join(self._pending.popleft())

    def finishing(self, make: Callable[[], T]) -> T:
        """Return what `make` returns, and finish whether or not it raises."""
        try:
            return make()
        finally:
            self.finish()


class DividedModule:
    """The methods of `rlcore.protocols.Divisible` for a learner whose weights are those of `module`.

    A learner inherits them, defines `blocks`, and loads its weights inside `overwriting`.
    """

    module: Any
    _shards: tuple[Any, ...] = ()

    def check_divisible(self, strategy: str) -> None:
        """Raise nothing: the weights can be divided."""

    def lockstep_copy(self, memo: dict[int, Any], *, every_block: bool = False) -> nn.Module:  # noqa: ARG002
        """Return a copy of `module`, which runs the same blocks in every pass."""
        trained: nn.Module = copy.deepcopy(self.module, memo)
        return trained

    def frozen_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters beside `module` that are needed without gradients: none."""
        return {}

    def use_shards(self, *shards: Any) -> None:
        """Divide the weights among processes; the first shards are those of `module`."""
        self._shards = shards

    def gather(self) -> None:
        """Complete the weights of `module` on every process, if they are divided; collective."""
        for shards in self._shards[:1]:
            shards.gather()

    def by_block(self) -> AbstractContextManager[None]:
        """Return a context in which passes without gradients complete one block at a time, if weights are divided."""
        return self._shards[0].by_block(self, self._shards) if self._shards else nullcontext()

    def drop(self) -> None:
        """Free the memory of the whole weights, if they are divided."""
        for shards in self._shards:
            shards.drop()

    @contextmanager
    def overwriting(self) -> Iterator[None]:
        """Complete the weights of `module`, and divide them anew after the block, which changes them; collective."""
        self.gather()
        yield
        for shards in self._shards[:1]:
            shards.scatter()

    @contextmanager
    def streaming(
        self,
        further: Sequence[Tensor] = (),
        *,
        here: bool,
        merged: bool = False,  # noqa: ARG002
        omit_weights: bool = False,  # noqa: ARG002
    ) -> Iterator[TensorStream]:
        """Complete the weights in the CPU's memory of the processes that pass `here`, inside the context."""
        with ExitStack() as stack:
            for shards in self._shards[:1]:
                stack.enter_context(shards.gathered(here=here))
            stream = TensorStream(further, *(shards.cut.join for shards in self._shards[:1]))
            if not here:
                stream.finish()
            yield stream

    def divided_weights(self) -> dict[str, Tensor]:
        """Return the weights of a file that is written one tensor at a time: none."""
        return {}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and value of every weight of `module`, one at a time; every process iterates to the end."""
        values = ((name, weight.detach()) for name, weight in self.module.named_parameters())
        yield from self._shards[0].stream() if self._shards else values

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every weight of `module` and what this process keeps of it."""
        kept: Iterable[Tensor] = self._shards[0].parts if self._shards else self.module.parameters()
        for (name, _), part in zip(self.module.named_parameters(), kept, strict=True):
            yield name, part.to_local() if isinstance(part, DTensor) else part.detach()


def by_block(learner: Learner) -> AbstractContextManager[None]:
    """Return the context `Divisible.by_block` of a learner; nothing of other learners is divided."""
    return learner.by_block() if isinstance(learner, Divisible) else nullcontext()


def streaming(
    learner: Learner, further: Sequence[Tensor] = (), *, here: bool, merged: bool = False, omit_weights: bool = False
) -> AbstractContextManager[TensorStream]:
    """Return the context `Divisible.streaming` of a learner; nothing of other learners is divided."""
    if isinstance(learner, Divisible):
        return learner.streaming(further, here=here, merged=merged, omit_weights=omit_weights)
    return nullcontext(TensorStream(()))


def local_weights(learner: Learner) -> Iterator[tuple[str, Tensor]]:
    """Yield the name of every weight of a learner and what this process keeps of it."""
    yield from learner.parts() if isinstance(learner, Divisible) else learner.module.named_parameters()
