"""Every process keeps a part of the optimizer's state (stage 2), or of each weight too (stage 3): DeepSpeed's ZeRO.

In stage 2 the policy's own module runs with gradients, as one of a single process does. In stage 3 a copy of it does,
whose weights DeepSpeed divides; the policy's own module runs without gradients, on gathered weights, as in
`rlcore_shard.fsdp`. DeepSpeed concatenates the parameters of each group of the optimizer, and every process steps
its part of the concatenation (`rlcore_shard.divisible`).

Rajbhandari et al. 2019, arXiv:1910.02054.

Also in this file: weights that stage 3 of ZeRO divides one after another, so that no process has all of them in
memory at once.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlcore.errors import ConfigError, ModelError
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.types import Options, State
from rlcore_shard.divisible import (
    DivisibleLearner,
    Fragment,
    check_optimizer,
    copy_of,
    divisible,
    gather_state,
    load_state,
    open_process_group,
    run_divided,
)
from rlcore_shard.shards import Cut, Shards

__all__ = ["divide", "part_of", "set_aside", "start_dtypes"]


def start_dtypes(learner: DivisibleLearner) -> dict[int, torch.dtype]:
    """Return the dtypes that weights shall have which are still as in their files, by the id of the parameter."""
    found: dict[int, torch.dtype] = getattr(learner, "start_dtypes", dict)()
    return found


def set_aside(learner: DivisibleLearner, trained: nn.Module, device: torch.device) -> dict[nn.Parameter, Tensor]:
    """Return the weights that are still as in their files, by parameter of `trained`; `divide` brings them back.

    Until then a parameter has its shape and dtype, by which optimizers group it, and memory of one element.
    """
    start, found = start_dtypes(learner), dict[nn.Parameter, Tensor]()
    for weight, like in zip(trained.parameters(), learner.module.parameters(), strict=True):
        if (dtype := start.get(id(like))) is not None:
            found[weight] = weight.data
            weight.data = torch.zeros((), dtype=dtype, device=device).expand(weight.shape)
    return found


def divide(deepspeed: Any, weights: Mapping[nn.Parameter, Tensor], options: Options) -> None:
    """Convert one weight after another, of which DeepSpeed then leaves this process its part; collective.

    Args:
        deepspeed: the package.
        weights: what `set_aside` returned.
        options: DeepSpeed's configuration.
    """
    first: Any = None
    for weight, in_file in weights.items():
        weight.data = in_file.to(weight.device, weight.dtype, copy=True)
        if first is None:
            first = weight
            deepspeed.zero.Init(module=nn.ParameterList([weight]), config_dict_or_path=dict(options))
        else:
            first.convert_to_zero_parameters([weight])


def part_of(whole: Tensor, ranks: Ranks, dtype: torch.dtype | None = None) -> Tensor:
    """Return this process's part of a tensor, which is padded to equal parts, converted to a dtype."""
    size = -(-whole.numel() // ranks.world)
    mine = whole.detach().flatten()[ranks.rank * size :][:size]
    part = torch.zeros(size, dtype=dtype or whole.dtype, device=ranks.device if dtype else whole.device)
    part[: mine.numel()] = mine
    return part


class ZeroRedundancy:
    """The strategies `zero2` and `zero3` (`rlcore.protocols.Sharding`).

    Args:
        ranks: this process's place among the others.
        stage: 2 divides gradients and optimizer state, 3 divides weights too.
        within_node: refused if there are several machines: DeepSpeed divides among all processes.
        offload: keep the optimizer's state in the CPU's memory, where it steps, and in stage 3 the weights' parts too.
    """

    divides_rows = False

    def __init__(self, ranks: Ranks, *, stage: int, within_node: bool, offload: bool) -> None:
        self.ranks, self.was_skipped, self.name = ranks, False, f"zero{stage}"
        if ranks.mixed_precision == "fp16":
            raise ConfigError(f"run.shard = '{self.name}': run.mixed_precision = 'fp16' is not supported: use bf16")
        if within_node and 0 < int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world)) < ranks.world:
            raise ConfigError(
                f"run.shard_within = 'node': run.shard = '{self.name}' divides among all processes: set "
                "run.shard_within=world, or run.shard=fsdp"
            )
        self._stage, self._offload, self._deepspeed = stage, offload, _import_deepspeed(ranks, self.name)

    def cut(self, policy: Learner) -> list[nn.Parameter]:
        """Return the parameters that DeepSpeed divides in `drive`, which needs the optimizer.

        Raises:
            ModelError: the model cannot be divided.
        """
        self._learner: DivisibleLearner = divisible(policy, self.name)
        module = self._learner.module
        self._trained: nn.Module = module
        self._in_files: dict[nn.Parameter, Tensor] = {}
        if self._stage == 3:
            self._trained = copy_of(self._learner, every_block=True)  # because DeepSpeed gathers what runs
            self._in_files = set_aside(self._learner, self._trained, self.ranks.device)
        self.parameters = [each for each in self._trained.parameters() if each.requires_grad]
        low = sorted({str(each.dtype).removeprefix("torch.") for each in self.parameters} - {"float32"})
        if low:
            raise ModelError(
                f"run.shard = '{self.name}': weights of {', '.join(low)} train, which is not supported: set "
                "model.dtype=float32, with run.mixed_precision=bf16 to compute in 16 bits"
            )
        return self.parameters

    def drive(self, optimizer: Optimizer) -> Any:
        """Let DeepSpeed divide the parameters and the optimizer's state, and return its optimizer.

        Raises:
            ConfigError: the optimizer reads whole tensors, as one with factorised or 8-bit moments does.
        """
        check_optimizer(optimizer, self.name)
        self._groups = [list(group["params"]) for group in optimizer.param_groups]
        open_process_group(self.ranks)
        os.environ.setdefault("LOCAL_RANK", "0")  # DeepSpeed requires it of one process too
        options = self._options()  # which depend on the sizes of whole weights
        divide(self._deepspeed, self._in_files, options)
        self._in_files.clear()
        self._engine, self.optimizer, *_ = self._deepspeed.initialize(
            model=self._trained, optimizer=optimizer, config=options
        )
        self._divide()
        run_divided(self._learner, self._trained, self._engine, self.ranks)
        return self.optimizer

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Reduce gradients in every micro-batch; the whole weights of stage 3 are freed first."""
        if self._stage == 3:
            self._learner.drop()
        self._engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch's loss."""
        self._engine.backward(loss * self.ranks.world)  # gradients are averaged over ranks

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; a gradient that is not finite makes no step."""
        self.optimizer.clip_grad = max_norm
        self._engine.step()
        self.was_skipped = not self._engine.was_step_applied()
        if self._stage == 3:
            self._learner.drop()
        return torch.as_tensor(self._engine.get_global_grad_norm()) if max_norm else None

    def discard(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()
        self.optimizer.micro_step_id = 0 if self._stage == 3 else -1  # the next gradient replaces the present one

    def state_dict(self) -> State:
        """Return the state of the optimizer with whole tensors, one gathered at a time, in the memory of rank 0's CPU.

        Other ranks return empty tensors in their place.
        """
        return gather_state(self.optimizer.optimizer, self._fragments(), self.ranks)

    def load_state_dict(self, state: State) -> None:
        """Restore a state with whole tensors, of which this process keeps its parts."""
        load_state(self.optimizer.optimizer, self._fragments(), state)

    def _options(self) -> dict[str, Any]:
        """Return DeepSpeed's configuration."""
        cpu = {"device": "cpu"}
        size = sum(each.numel() for each in self.parameters)
        zero: dict[str, Any] = {
            "stage": self._stage,
            "reduce_bucket_size": min(size, 5e8),  # a buffer of so many elements, whatever the model's size
            "stage3_param_persistence_threshold": 0,
        }  # fmt: skip
        if self._offload:
            zero |= {"offload_optimizer": cpu} | ({"offload_param": cpu} if self._stage == 3 else {})
        is_mixed = self.ranks.mixed_precision != "no"
        # DeepSpeed ends autocast that it does not begin. Without these modules, weights are gathered in full precision.
        autocast = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        return {
            "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, "steps_per_print": 2**62,
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "zero_optimization": zero,
        } | ({"torch_autocast": autocast} if is_mixed else {})  # fmt: skip

    def _divide(self) -> None:
        """Let the learner keep the parts of its weights."""
        module = self._learner.module
        own: list[Any] = list(self._trained.parameters())
        named = dict(module.named_parameters())
        if self._stage == 2:
            self._learner.use_shards(Shards(named, list(own), Cut(torch.Tensor.detach, self._copy_whole), stay=True))
            return
        frozen, start = self._learner.frozen_parameters(), start_dtypes(self._learner)
        kept = [part_of(each, self.ranks, start.get(id(each))) for each in frozen.values()]
        parts = [each.ds_tensor for each in own]
        self._shapes = {id(part): each.shape for part, each in zip(kept, frozen.values(), strict=True)}
        self._shapes |= {id(part): each.ds_shape for part, each in zip(parts, own, strict=True)}
        self._owners = {id(part): each for part, each in zip(parts, own, strict=True) if each.requires_grad}
        cut = Cut(self._join, self._copy, device=self.ranks.device)
        weights = Shards(named, parts, cut)
        weights.scatter()  # DeepSpeed does not set the numbers that pad a part to the size of the others
        self._learner.use_shards(weights, Shards(frozen, kept, cut))
        if start:
            self._learner.drop()

    def _join(self, part: Tensor) -> Tensor:
        shape, mine = self._shapes[id(part)], part.detach().to(self.ranks.device)
        pieces = mine.new_empty(self.ranks.world * mine.numel())
        torch.distributed.all_gather(list(pieces.chunk(self.ranks.world)), mine)
        return pieces[: shape.numel()].view(shape)

    def _copy_whole(self, parameter: Tensor, whole: Tensor) -> None:
        parameter.copy_(whole)
        self._deepspeed.utils.safe_set_full_fp32_param(parameter, whole)  # that which the optimizer steps

    def _copy(self, part: Tensor, whole: Tensor) -> None:
        part.copy_(part_of(whole, self.ranks))
        if id(part) in self._owners:
            self._deepspeed.utils.safe_set_local_fp32_param(self._owners[id(part)], part)

    def _fragments(self) -> list[list[Fragment]]:
        """Return, for each group of the optimizer, what this process keeps of its parameters' state."""
        flat = self._flat_of_stage_2 if self._stage == 2 else self._flat_of_stage_3
        return [[flat(index, each) for each in group] for index, group in enumerate(self._groups)]

    def _flat_of_stage_2(self, index: int, parameter: Any) -> Fragment:
        tensor, mapping = self.optimizer.single_partition_of_fp32_groups[index], parameter._hp_mapping  # noqa: SLF001
        if mapping is None:
            return Fragment(tensor, parameter.shape)
        inner, outer = mapping.hp_fragment_address, mapping.lp_fragment_address
        return Fragment(tensor, parameter.shape, start=inner.start, offset=outer.start, size=inner.numel)

    def _flat_of_stage_3(self, _: int, parameter: Any) -> Fragment:
        group, start, size = self.optimizer.grad_position[self.optimizer.get_param_id(parameter)]
        offset = self.ranks.rank * size
        size = max(0, min(size, parameter.ds_numel - offset))
        tensor = self.optimizer.fp32_partitioned_groups_flat[group]
        return Fragment(tensor, parameter.ds_shape, start=start, offset=offset, size=size)


def build_zero2(config: RunConfig, ranks: Ranks) -> ZeroRedundancy:
    """Return the strategy `zero2`.

    Raises:
        ConfigError: deepspeed is not installed, or does not work with the other options of the run.
    """
    return ZeroRedundancy(ranks, stage=2, within_node=config.shard_within == "node", offload=config.offload)


def build_zero3(config: RunConfig, ranks: Ranks) -> ZeroRedundancy:
    """Return the strategy `zero3`.

    Raises:
        ConfigError: deepspeed is not installed, or does not work with the other options of the run.
    """
    return ZeroRedundancy(ranks, stage=3, within_node=config.shard_within == "node", offload=config.offload)


def _import_deepspeed(ranks: Ranks, strategy: str) -> Any:
    """Return the package deepspeed, which takes seconds to import.

    Raises:
        ConfigError: it is not installed.
    """
    if ranks.device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # it warns if it has to find out
    try:
        import deepspeed
    except ImportError as error:
        raise ConfigError(
            f"run.shard = '{strategy}': needs the package deepspeed: pip install 'rlcore-shard[deepspeed]' ({error})"
        ) from error
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)  # it calls them
    if ranks.device.type == "cpu":  # collective operations of torch, not of an extension that has to be compiled
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    return deepspeed
