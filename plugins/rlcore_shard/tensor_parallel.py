"""Every process computes a part of each layer: torch's tensor parallelism, by the plan of the model.

Of a linear layer that the model's plan names each process keeps some columns or rows, with their gradients and moments,
and computes with these alone: in passes with gradients no weight of a layer is gathered, but processes sum hidden
states: twice in a block forward, and backward once for each linear layer of which they keep columns, five in a block of
a Llama. All of them run the same rows, those of all processes. What the plan does not name is whole in every process.
Passes without gradients, of which processes make different numbers, run on whole weights that are gathered
(`rlcore_shard.zero`).

Shoeybi et al. 2019, arXiv:1909.08053.

Also in this file: how a model of `transformers` says that its layers are divided (`tp_plan`), and which models that
does not fit.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import attrs
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle
from torch.nn import functional

from rlcore.errors import ConfigError, ModelError
from rlcore.ops import is_stochastic
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.sharding import load_optimizer
from rlcore.types import State
from rlcore_shard.divisible import DivisibleLearner, StepsParts, copy_of, divisible, open_process_group, run_divided
from rlcore_shard.shards import Cut, Shards

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


def run_on_all_rows(
    forward: Callable[..., Any], rank: int, arrays: Sequence[Tensor], options: dict[str, object]
) -> object:
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


class TensorParallel(StepsParts):
    """The strategy `tp` (`rlcore.protocols.Sharding`).

    The optimizer steps plain tensors, which share their memory with the parts: torch's optimizers do not take divided
    and whole tensors together.

    Args:
        ranks: this process's place among the others.
    """

    name = "tp"
    divides_rows = False

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        open_process_group(ranks)
        self._mesh = init_device_mesh(ranks.device.type, (ranks.world,), mesh_dim_names=("tensor",))
        self._cut = Cut(self._join, self._copy, device=ranks.device)

    def cut(self, policy: Learner) -> list[nn.Parameter]:
        """Copy the module of `policy`, divide the layers of the copy, and return what trains.

        Raises:
            ModelError: the model has no plan, one that does not fit the number of processes, or dropout.
        """
        learner: DivisibleLearner = divisible(policy, "tp")
        self._learner, module = learner, learner.module
        trained = copy_of(learner, every_block=True)  # because processes have cached other sequences
        plan = plan_of(trained, self.ranks.world)
        if is_stochastic(trained.train()):
            raise ModelError(
                "run.shard = 'tp': the model has dropout or other random layers, which draw other numbers in each "
                "process: set trainer.dropout=false, or run.shard=fsdp"
            )
        # Weights that are still as in their files are converted layer by layer, and this process keeps its parts.
        start: dict[int, torch.dtype] = getattr(learner, "start_dtypes", dict)()
        named = zip(trained.named_parameters(), module.parameters(), strict=True)
        dtypes = {name: start[id(like)] for (name, _), like in named if id(like) in start}
        self._divide(trained, plan.linear, dtypes)
        summed = {id(each) for name in plan.summed for each in trained.get_submodule(name).parameters()}
        parts = list(trained.parameters())
        weights = Shards(dict(module.named_parameters()), list(parts), self._cut)
        frozen = learner.frozen_parameters()
        # Beside the model, rows are enough: a reference runs on gathered weights alone.
        kept = [self._rows(each.detach(), start.get(id(each))) for each in frozen.values()]
        learner.use_shards(weights, Shards(frozen, kept, self._cut))
        if start:
            learner.drop()
        rank = self.ranks.rank
        run_divided(
            learner, trained, lambda *args, **options: run_on_all_rows(trained, rank, args, options), self.ranks
        )
        self._parts = [part for part in parts if part.requires_grad]
        self._is_summed = [id(part) in summed for part in self._parts]
        self.parameters = [nn.Parameter(local(part)) for part in self._parts]
        return self.parameters

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:  # noqa: ARG002  every pass exchanges hidden states
        """Free the whole weights."""
        self._learner.drop()
        yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of the losses of all processes for one micro-batch."""
        torch.autograd.backward(loss)

    def discard(self) -> None:
        """Clear the gradients."""
        super().discard()
        for part in self._parts:
            part.grad = None

    def state_dict(self) -> State:
        """Return the state of the optimizer, with this process's parts of its tensors."""
        state: State = self.optimizer.state_dict()
        return {**state, "state": self._each(state["state"], self._as_part)}

    def load_state_dict(self, state: State) -> None:
        """Restore a state with whole tensors, of which this process keeps its parts."""
        load_optimizer(self.optimizer, {**state, "state": self._each(state["state"], self._restored)})

    def _each(self, state: dict[int, State], change: Any) -> dict[int, dict[str, object]]:
        """Apply `change` to a part and the tensors in the state of its parameter."""
        own = {id(each): part for each, part in zip(self.parameters, self._parts, strict=True)}
        parts = [own[id(each)] for group in self.optimizer.param_groups for each in group["params"]]
        return {
            index: {
                name: change(parts[index], each) if isinstance(each, Tensor) else each for name, each in kept.items()
            }
            for index, kept in state.items()
        }

    def _as_part(self, part: Tensor, held: Tensor) -> Tensor:
        """Return a tensor in the state of a parameter as a divided one, if the parameter is and the shapes agree."""
        if not isinstance(part, DTensor) or held.shape != local(part).shape:
            return held
        placements = cast("Sequence[Placement]", part.placements)
        return DTensor.from_local(held, self._mesh, placements, shape=part.shape, stride=part.stride(), run_check=False)

    def _restored(self, part: Tensor, saved: Tensor) -> Tensor:
        return self._own(part, saved).clone() if saved.shape == part.shape else saved

    def _divide(self, trained: nn.Module, linear: Mapping[str, str], dtypes: Mapping[str, torch.dtype]) -> None:
        """Divide the named layers; each part has memory of its own, so that the whole weights can be freed.

        Args:
            trained: the module.
            linear: name of a layer → how it is divided.
            dtypes: name of a weight that is as in its file → the dtype that it shall have.
        """
        for name, style in linear.items():
            layer = trained.get_submodule(name)
            divide: ParallelStyle = ColwiseParallel() if style == COLUMNS else RowwiseParallel()
            parallelize_module(layer, self._mesh, divide, src_data_rank=None)
            for key, part in list(layer.named_parameters(recurse=False)):
                own = cast("DTensor", part.detach())
                moved = DTensor.from_local(
                    own.to_local().to(dtypes.get(f"{name}.{key}", own.dtype), copy=True), self._mesh, own.placements,
                    shape=own.shape, stride=own.stride(), run_check=False,
                )  # fmt: skip
                layer.register_parameter(key, nn.Parameter(moved, requires_grad=part.requires_grad))
        for name, weight in trained.named_parameters():
            if name in dtypes and not isinstance(weight, DTensor):
                weight.data = weight.data.to(self.ranks.device, dtypes[name], copy=True)

    def _rows(self, whole: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Return this process's rows of a tensor that every process has, converted to a dtype."""
        part = distribute_tensor(whole, self._mesh, [Shard(0)], src_data_rank=None)
        return part if dtype is None else part.to(dtype, copy=True)

    def _clip(self, max_norm: float) -> Tensor:
        """Hand the gradients to what the optimizer steps, and clip them; return the norm before.

        Gradients of whole tensors are averaged, because kernels of a GPU may round them differently in each process.
        """
        divided, whole = [], []
        for parameter, part, is_summed in zip(self.parameters, self._parts, self._is_summed, strict=True):
            if part.grad is None:
                continue
            gradient = local(part.grad)
            parameter.grad = gradient
            if is_divided(part):
                divided.append(gradient)
                continue
            if self.ranks.world > 1:
                torch.distributed.all_reduce(gradient)
                gradient /= 1 if is_summed else self.ranks.world
            whole.append(gradient)
        square = torch.nn.utils.get_total_norm(divided).square().to(self.ranks.device)
        torch.distributed.all_reduce(square)
        norm = (square + torch.nn.utils.get_total_norm(whole).square().to(square)).sqrt()
        if max_norm:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        return norm

    def _join(self, part: Tensor) -> Tensor:
        """Return the whole tensor of which this process keeps a part; collective."""
        return cast("DTensor", part.detach()).full_tensor() if isinstance(part, DTensor) else part.detach()

    def _copy(self, part: Tensor, whole: Tensor) -> None:
        """Overwrite a part by that of a whole tensor."""
        local(part).copy_(self._own(part, whole))

    def _own(self, part: Tensor, whole: Tensor) -> Tensor:
        """Return what this process keeps of a whole tensor, divided as `part` is."""
        if not isinstance(part, DTensor):
            return whole
        return distribute_tensor(
            whole.to(self.ranks.device), self._mesh, part.placements, src_data_rank=None
        ).to_local()


def build_tp(config: RunConfig, ranks: Ranks) -> TensorParallel:
    """Return the strategy `tp`.

    Raises:
        ConfigError: it does not work with the other options of the run.
    """
    if config.offload:
        raise ConfigError("run.offload: needs run.shard=fsdp, zero2 or zero3; run.shard = 'tp' keeps all on the device")
    if ranks.mixed_precision == "fp16":
        raise ConfigError("run.shard = 'tp': run.mixed_precision = 'fp16' is not supported: use bf16")
    if config.shard_within == "node" and 0 < int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world)) < ranks.world:
        raise ConfigError(
            "run.shard_within = 'node': run.shard = 'tp' divides among all processes: set run.shard_within=world, or "
            "run.shard=fsdp"
        )
    return TensorParallel(ranks)


def local(tensor: Tensor) -> Tensor:
    """Return what this process keeps of a tensor."""
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()


def is_divided(tensor: Tensor) -> bool:
    """Return whether each process keeps another part of a tensor."""
    return isinstance(tensor, DTensor) and not all(isinstance(each, Replicate) for each in tensor.placements)
