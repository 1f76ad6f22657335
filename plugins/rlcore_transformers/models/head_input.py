"""Record or select the hidden states that a model's output embeddings receive.

Families differ in the form of `logits_to_keep` and in the names of hidden states; the input of the output embeddings is
the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def head_reads(head: nn.Module, change: Callable[[Tensor], Tensor] | None = None) -> Iterator[list[Tensor]]:
    """Return a list that collects the inputs of `head` while the context is open, one entry per call.

    Args:
        head: the output embeddings.
        change: maps the hidden states, float[B, T, H], to those that the head receives instead.
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
