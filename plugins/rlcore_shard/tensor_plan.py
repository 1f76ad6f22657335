"""How a model of `transformers` says that its layers are divided (`tp_plan`), and which models that does not fit.

Also in this file: the rows of all processes in one forward pass, of which each process keeps the outputs of its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from rlcore.errors import ModelError

COLUMNS, ROWS, SUMMED = "colwise", "rowwise", "replicated_with_grad_allreduce"
"""A linear layer of which each process computes some outputs, or takes some inputs; a layer between these two, which is
whole and runs on what the process computes, so that its gradients are summed."""
HEADS = ("num_attention_heads", "num_key_value_heads")


@attrs.frozen
class TensorPlan:
    """The layers of a module that are divided.

    Attributes:
        linear: qualified name → `COLUMNS` or `ROWS`.
        summed: qualified names of the layers whose gradients are summed.
    """

    linear: Mapping[str, str]
    summed: frozenset[str]


def plan_of(module: nn.Module, world: int) -> TensorPlan:
    """Return the plan of all models inside a module; the embeddings and output embeddings stay whole.

    Args:
        module: contains models of `transformers`.
        world: the number of processes.

    Raises:
        ModelError: a model has no plan, or one that cannot be followed.
    """
    linear: dict[str, str] = {}
    summed: set[str] = set()
    for prefix, model in _outermost(module):
        kind, found = type(model).__name__, 0
        if hasattr(model, "peft_config"):
            raise ModelError(
                f"run.shard = 'tp': {kind} has an adapter, whose layers no plan divides: set run.shard=fsdp, or leave "
                "out model.peft"
            )
        _check_heads(model, kind, world)
        for name, style in _layers(model):
            layer, place = model.get_submodule(name), f"{prefix}{name}"
            if style == SUMMED:
                summed.add(place)
            elif style not in (COLUMNS, ROWS):
                raise ModelError(
                    f"run.shard = 'tp': the plan of {kind} has the style {style!r} at {name}, which is not supported; "
                    f"supported are {COLUMNS}, {ROWS} and {SUMMED}: set run.shard=fsdp"
                )
            else:
                _check_layer(layer, name, kind, style, world)
                linear[place], found = style, found + 1
        if not found:
            raise ModelError(
                f"run.shard = 'tp': {kind} has no plan by which its layers are divided (tp_plan of transformers), or "
                "its plan names none of them: set run.shard=fsdp, which divides any model"
            )
    _check_owners(module, linear)
    return TensorPlan(linear, frozenset(summed))


def _outermost(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the models of `transformers` inside a module, with the prefix of the names of their layers.

    Raises:
        ModelError: there is none.
    """
    found: list[str] = []
    for name, part in module.named_modules():
        prefix = f"{name}." if name else ""
        if hasattr(part, "tp_plan") and not any(prefix.startswith(outer) for outer in found):
            found.append(prefix)
            yield prefix, part
    if not found:
        raise ModelError(
            f"run.shard = 'tp': {type(module).__name__} contains no model of transformers, which has a plan by which "
            "its layers are divided: set run.shard=fsdp"
        )


def _layers(model: Any) -> Iterator[tuple[str, str]]:
    """Yield the names and styles of the layers that the plan of a model names, without its embeddings."""
    whole = {id(each) for each in (model.get_input_embeddings(), model.get_output_embeddings()) if each is not None}
    patterns = [
        (re.compile(re.escape(pattern).replace(r"\*", r"\d+")), style)
        for pattern, style in (model.tp_plan or {}).items()
    ]
    named = {name for name, _ in (*model.named_modules(), *model.named_parameters())}
    modules = dict(model.named_modules())
    for name in sorted(named):
        style = next((style for pattern, style in patterns if pattern.fullmatch(name)), None)
        if style is None or id(modules.get(name)) in whole:
            continue
        if name not in modules:
            raise ModelError(
                f"run.shard = 'tp': the plan of {type(model).__name__} divides {name} ({style}), which is a tensor and "
                "no layer, as experts are: set run.shard=fsdp"
            )
        yield name, style


def _check_owners(module: nn.Module, linear: Mapping[str, str]) -> None:
    owners = Counter(id(weight) for part in module.modules() for weight in part.parameters(recurse=False))
    for name in linear:
        if any(owners[id(weight)] > 1 for weight in module.get_submodule(name).parameters()):
            raise ModelError(
                f"run.shard = 'tp': {name} shares its weight with another layer, and weights of divided layers cannot "
                "be shared: set run.shard=fsdp"
            )


def _check_heads(model: Any, kind: str, world: int) -> None:
    for option in HEADS:
        count = getattr(model.config, option, None)
        if isinstance(count, int) and count % world:
            raise ModelError(
                f"run.shard = 'tp': {kind} has {option} = {count}, which {world} processes do not divide: start a "
                "number of processes that divides it, or set run.shard=fsdp"
            )


def _check_layer(layer: nn.Module, name: str, kind: str, style: str, world: int) -> None:
    if type(layer) is not nn.Linear:
        raise ModelError(
            f"run.shard = 'tp': {name} of {kind} is of the class {type(layer).__name__}, and only plain linear layers "
            "can be divided: set run.shard=fsdp"
        )
    size = layer.out_features if style == COLUMNS else layer.in_features
    if size % world:
        raise ModelError(
            f"run.shard = 'tp': {name} of {kind} has {size} {'outputs' if style == COLUMNS else 'inputs'}, which "
            f"{world} processes do not divide: start a number of processes that divides it, or set run.shard=fsdp"
        )


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
