"""Every process keeps a part of each weight, gradient and moment: torch's FSDP2 (`torch.distributed.fsdp.fully_shard`).

Two modules share the weights. The policy's own module runs without gradients, on whole weights that are gathered when
they are needed and freed before the next gradient (`rlcore_shard.zero`). A copy of it, cut into parts, runs with
gradients: each block is gathered before it runs and freed after it. The number of passes with gradients is the same on
every process, as collective operations require; that of passes without gradients need not be.

Rajbhandari et al. 2019, arXiv:1910.02054 (stage 3); Zhao et al. 2023, arXiv:2304.11277.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from rlcore.errors import ConfigError, RanksError
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.sharding import SavedTensor, load_optimizer
from rlcore.types import State
from rlcore_shard.block_passes import norms_of, shared_weights
from rlcore_shard.divisible import DivisibleLearner, StepsParts, copy_of, divisible, open_process_group, run_divided
from rlcore_shard.shards import Cut, Shards


class FullySharded(StepsParts):
    """The strategy `fsdp` (`rlcore.protocols.Sharding`).

    Args:
        ranks: this process's place among the others.
        within_node: cut weights among the processes of a machine only, and copy them between machines.
        offload: keep the parts, their gradients and moments in the CPU's memory.
    """

    name = "fsdp"
    divides_rows = True

    def __init__(self, ranks: Ranks, *, within_node: bool, offload: bool) -> None:
        if ranks.mixed_precision == "fp16":
            raise ConfigError(
                "run.shard = 'fsdp': run.mixed_precision = 'fp16' scales gradients, which is not supported for sharded "
                "ones: use bf16"
            )
        self.ranks = ranks
        self._offload: OffloadPolicy = CPUOffloadPolicy(pin_memory=ranks.device.type != "cpu") if offload else (
            OffloadPolicy()
        )  # fmt: skip
        self._mesh = _mesh(ranks, within_node=within_node)
        self._placements: list[Placement] = [Replicate()] * (self._mesh.ndim - 1) + [Shard(0)]
        self._cut = Cut(self._join, self._copy, reads_rows=True, device=ranks.device)

    def cut(self, policy: Learner) -> list[nn.Parameter]:
        """Copy the module of `policy`, cut the copy, and return its parts that train.

        Raises:
            ModelError: the model cannot be sharded.
        """
        learner = divisible(policy, "fsdp")
        self._learner, module = learner, learner.module
        trained = copy_of(learner)
        # Weights that are still as in their files are converted block by block, and this process keeps its rows.
        start: dict[int, torch.dtype] = getattr(learner, "start_dtypes", dict)()
        own = zip(trained.parameters(), module.parameters(), strict=True)
        self._dtypes = {id(each): start[id(like)] for each, like in own if id(like) in start}
        self._shard(trained, learner)
        self._trained: Any = trained
        parts = list(trained.parameters())
        weights = Shards(dict(module.named_parameters()), list(parts), self._cut)
        frozen = learner.frozen_parameters()
        kept = [self._part(each.data, start.get(id(each))) for each in frozen.values()]
        learner.use_shards(weights, Shards(frozen, kept, self._cut))
        if start:
            learner.drop()
        run_divided(learner, trained, self._run, self.ranks)
        self.parameters: list[nn.Parameter] = [part for part in parts if part.requires_grad]
        return self.parameters

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Reduce gradients within a node in every micro-batch, so that none is ever whole, and between nodes at last.

        The whole weights are freed first.
        """
        self._learner.drop()
        self._trained.set_requires_all_reduce(last)
        yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch's loss."""
        torch.autograd.backward(loss * self.ranks.world)  # gradients are averaged over ranks

    def state_dict(self) -> State:
        """Return the state of the optimizer, with this process's parts of its tensors."""
        state: State = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore a state with whole tensors, in memory or in a file, of which this process keeps its rows."""
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        cut = {
            index: {name: self._restored(parameters[index], each) for name, each in kept.items()}
            for index, kept in state["state"].items()
        }
        load_optimizer(self.optimizer, {**state, "state": cut})

    def _restored(self, part: Tensor, saved: Any) -> Any:
        """Return a value in the state of a parameter: a tensor of its shape is cut as it is."""
        if isinstance(saved, Tensor):
            saved = SavedTensor.of(saved)
        if not isinstance(saved, SavedTensor):
            return saved
        if saved.shape != part.shape or not isinstance(part, DTensor):
            return saved[...]
        rows = self._rows(part, saved).to(part.to_local().device)
        return self._kept(
            DTensor.from_local(rows, self._mesh, self._placements, shape=part.shape, stride=part.stride())
        )

    def _run(self, *args: Any, **options: Any) -> Any:
        """Call the parts, which torch gathers."""
        with warnings.catch_warnings():  # torch warns of views, which the policy and the scorer return copies of
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            return self._trained(*args, **options)

    def _shard(self, trained: nn.Module, learner: DivisibleLearner) -> None:
        """Cut the blocks of every model inside, then parts of another precision than the root, then the rest."""
        blocks = learner.blocks(trained)
        whole = shared_weights(blocks)
        within = {id(weight) for block in blocks for weight in block.parameters()}
        self._begin(weight for weight in trained.parameters() if id(weight) not in within or weight in whole)
        options: dict[str, Any] = {
            "mesh": self._mesh, "offload_policy": self._offload, "ignored_params": whole or None,
        }  # fmt: skip
        plain = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
        for block in blocks:
            self._begin(block.parameters())
            # Autocast rounds the weights of linear layers to 16 bits, so gathering those in 16 bits changes no result.
            norms = norms_of(block) if self.ranks.mixed_precision == "bf16" else None
            if norms:
                fully_shard(norms, mp_policy=plain, reshard_after_forward=False, **options)
            fully_shard(block, mp_policy=plain if norms is None else low, **options)
        dtype = next(trained.parameters()).dtype
        for part in trained.children():
            if any(weight.dtype != dtype for weight in part.parameters()):
                fully_shard(part, mp_policy=plain, **options)
        fully_shard(trained, mp_policy=plain, **options)

    def _begin(self, weights: Iterable[nn.Parameter]) -> None:
        """Convert weights that are as in their files, before they are divided."""
        for weight in weights:
            if (dtype := self._dtypes.get(id(weight))) is not None:
                weight.data = weight.data.to(self.ranks.device, dtype)

    def _clip(self, max_norm: float) -> Tensor:
        parts = [_local(parameter.grad) for parameter in self.parameters if parameter.grad is not None]
        square = torch.nn.utils.get_total_norm(parts).square().to(self.ranks.device)
        torch.distributed.all_reduce(square, group=self._mesh.get_group(self._mesh.ndim - 1))
        norm = square.sqrt()
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch.nn.utils.clip_grad_norm_ does
        for part in parts if max_norm else ():
            part.mul_(factor.to(part.device))
        return norm

    def _join(self, part: Tensor) -> Tensor:
        # Parts in the CPU's memory are gathered by the device, whose backend may not take tensors of the CPU.
        if not isinstance(part, DTensor):
            return part.detach()
        return cast("DTensor", part.detach().to(self.ranks.device)).full_tensor()

    def _part(self, whole: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Return this process's part of a tensor that every process holds, converted to a dtype."""
        part = distribute_tensor(whole.detach(), self._mesh, self._placements, src_data_rank=None)
        return self._kept(part if dtype is None else part.to(dtype, copy=True))

    def _kept(self, part: Tensor) -> Tensor:
        """Return a part where parts are kept; torch makes them on the device of the mesh."""
        return part.cpu() if isinstance(self._offload, CPUOffloadPolicy) else part

    def _copy(self, part: Tensor, whole: Any) -> None:
        """Overwrite a part by rows of a whole tensor, or of a slice of a file that contains it."""
        own = _local(part)
        if own.numel():
            own.copy_(self._rows(part, whole))

    def _rows(self, part: Tensor, whole: Any) -> Any:
        """Return the rows of a whole tensor of which `part` is a part."""
        own, first = _local(part), 0
        if own is not part:
            first = self._mesh.get_local_rank("shard") * -(-part.shape[0] // self._mesh["shard"].size())
        return whole[first : first + own.shape[0]]


def build_fsdp(config: RunConfig, ranks: Ranks) -> FullySharded:
    """Return the strategy `fsdp`.

    Raises:
        ConfigError: it does not work with the other options of the run.
    """
    return FullySharded(ranks, within_node=config.shard_within == "node", offload=config.offload)


def _mesh(ranks: Ranks, *, within_node: bool) -> DeviceMesh:
    """Return the mesh of the processes: the parts, or the nodes by the parts."""
    open_process_group(ranks)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world))
    if not within_node or not 0 < local < ranks.world:
        return init_device_mesh(ranks.device.type, (ranks.world,), mesh_dim_names=("shard",))
    if ranks.world % local:
        raise RanksError(
            f"run.shard_within = 'node': {ranks.world} processes cannot be divided into nodes of {local} "
            "(LOCAL_WORLD_SIZE): start the same number on every node, or set run.shard_within=world"
        )
    return init_device_mesh(ranks.device.type, (ranks.world // local, local), mesh_dim_names=("node", "shard"))


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
