"""Every process computes a part of each layer: torch's tensor parallelism, by the plan of the model.

Of a linear layer that the model's plan names (`rlcore_shard.tensor_plan`) each process keeps some columns or rows, with
their gradients and moments, and computes with these alone: in passes with gradients no weight of a layer is gathered,
but processes sum hidden states: twice in a block forward, and backward once for each linear layer of which they keep
columns, five in a block of a Llama. All of them run the same rows, those of all processes (`rlcore_shard.tensor_plan`).
What the plan does not name is whole in every process. Passes without gradients, of which processes make different
numbers, run on whole weights that are gathered (`rlcore_shard.shards`).

Shoeybi et al. 2019, arXiv:1909.08053.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.parallel.style import ParallelStyle

from rlcore.errors import ConfigError, ModelError
from rlcore.ops import is_stochastic
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.sharding.whole import load_optimizer
from rlcore_shard.divisible import DivisibleLearner, StepsParts, copy_of, divisible, open_process_group, run_divided
from rlcore_shard.shards import Cut, Shards
from rlcore_shard.tensor_plan import COLUMNS, plan_of, run_on_all_rows


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

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, with this process's parts of its tensors."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return {**state, "state": self._each(state["state"], self._as_part)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state with whole tensors, of which this process keeps its parts."""
        load_optimizer(self.optimizer, {**state, "state": self._each(state["state"], self._restored)})

    def _each(self, state: dict[int, dict[str, Any]], change: Any) -> dict[int, dict[str, Any]]:
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
