"""See, and narrow, what a model's output embeddings read.

The families that take `logits_to_keep` take it in different forms, and call hidden states by different names; the input
of the output embeddings is the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def head_reads(head: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Tensor]]:
    """List what `head` is called with while the context is open, one entry a call.

    Args:
        head: the output embeddings.
        change: makes of what they would read, float[B, T, H], what they read instead.
    """
    read: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read.append(args[0] if change is None else change(args[0]))
        return (read[-1], *args[1:])

    hook = head.register_forward_pre_hook(note)
    try:
        yield read
    finally:
        hook.remove()
