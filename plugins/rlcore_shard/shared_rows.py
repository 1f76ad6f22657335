"""The rows of all processes in one forward pass, of which each process keeps the outputs of its own.

Runs deal rows to processes, while a layer that is divided among processes needs the same rows in each of them.
`run_on_all_rows` stands between: it gathers the inputs of a micro-batch, and in the backward pass the gradients of the
outputs. Every process then runs the same pass, and has the gradient of the sum of the losses of all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


def run_on_all_rows(forward: Callable[..., Any], rank: int, arrays: Sequence[Tensor], options: dict[str, Any]) -> Any:
    """Call `forward` on the rows of all processes, and return the outputs for the rows of this process; collective.

    Args:
        forward: of two arrays, tokens and mask, it returns outputs of rows or of tokens, float[B, ...]; of three, the
            third of which marks N chosen tokens, a named tuple of outputs of these in row-major order, float[N, ...] or
            None, with a mapping `heads` of outputs float[..., N].
        rank: this process.
        arrays: long or bool[B, T], of which B and T may differ between processes.
        options: further arguments of `forward`, the same on all processes.
    """
    parts = gather_parts(torch.stack([each.long() for each in arrays], 2))
    width = max(part.shape[1] for part in parts)
    whole = torch.cat([functional.pad(part, (0, 0, 0, width - part.shape[1])) for part in parts])
    outputs = forward(*(each.to(like.dtype) for each, like in zip(whole.unbind(2), arrays, strict=True)), **options)
    if isinstance(outputs, Tensor):
        (own,) = own_entries(rank, [len(part) for part in parts], [outputs])
        return own[:, : arrays[0].shape[1]] if own.dim() > 1 else own
    counts = [int(part[..., 2].sum()) for part in parts]
    plain = {name: each for name, each in outputs._asdict().items() if isinstance(each, Tensor)}
    heads = outputs.heads
    first = own_entries(rank, counts, [*plain.values(), *(each.movedim(-1, 0) for each in heads.values())])
    further = {name: each.movedim(0, -1) for name, each in zip(heads, first[len(plain) :], strict=True)}
    return outputs._replace(**dict(zip(plain, first, strict=False)), heads=further)


def gather_parts(part: Tensor) -> list[Tensor]:
    """Return the tensors of all processes, which differ only in the lengths of the first two dimensions; collective."""
    world = torch.distributed.get_world_size()
    mine = torch.tensor(part.shape[:2], device=part.device)
    sizes = [torch.empty_like(mine) for _ in range(world)]
    torch.distributed.all_gather(sizes, mine)
    shapes = [(*each.tolist(), *part.shape[2:]) for each in sizes]
    return _gather(part, shapes)


def own_entries(rank: int, counts: Sequence[int], whole: Sequence[Tensor]) -> list[Tensor]:
    """Return this process's entries of tensors that every process has; gathering their gradients is collective.

    Args:
        rank: this process.
        counts: how many entries of the first dimension belong to each process, in their order.
        whole: float[sum(counts), ...] each.
    """
    own: tuple[Tensor, ...] = _OwnEntries.apply(rank, tuple(counts), *whole)  # type: ignore[no-untyped-call]
    return list(own)


class _OwnEntries(torch.autograd.Function):
    """Autograd function of `own_entries`, one for all outputs, so that all processes gather in the same order."""

    @staticmethod
    def forward(ctx: Any, rank: int, counts: tuple[int, ...], *whole: Tensor) -> tuple[Tensor, ...]:
        """Return the entries of a process."""
        ctx.counts = counts
        return tuple(each.split(counts)[rank].clone() for each in whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the entries of all processes."""
        whole = [
            torch.cat(_gather(each, [(count, *each.shape[1:]) for count in ctx.counts])) if needed else None
            for each, needed in zip(gradients, ctx.needs_input_grad[2:], strict=True)
        ]
        return None, None, *whole


def _gather(part: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Return the tensors of all processes, whose shapes are known; collective."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    flat = functional.pad(part.flatten(), (0, max(sizes) - part.numel()))
    received = [torch.empty_like(flat) for _ in shapes]
    torch.distributed.all_gather(received, flat)
    return [each[:size].view(shape) for each, size, shape in zip(received, sizes, shapes, strict=True)]
