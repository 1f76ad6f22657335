"""Every process keeps a part of the optimizer's state (stage 2), or of each weight too (stage 3): DeepSpeed's ZeRO.

In stage 2 the policy's own module runs with gradients, as one of a single process does. In stage 3 a copy of it does,
whose weights DeepSpeed divides; the policy's own module runs without gradients, on gathered weights, as in
`rlcore_shard.fsdp`. DeepSpeed concatenates the parameters of each group of the optimizer, and every process steps
its part of the concatenation (`rlcore_shard.zero`).

Rajbhandari et al. 2019, arXiv:1910.02054.

Also in this file: weights that stage 3 of ZeRO divides one after another, so that no process has all of them in memory
at once.

Also in this file: what strategies that divide a model have in common: what they refuse, how they run and step, and a
process group.
"""

from __future__ import annotations

import logging
import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Protocol

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlcore.errors import CheckpointError, ConfigError, ModelError
from rlcore.protocols import Divisible, Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.sharding import TensorStream, load_optimizer

WHOLE_TENSORS = ("bitsandbytes", "transformers.optimization")
"""Modules of optimizers that read whole tensors."""
OF_TORCH = ("Adafactor", "LBFGS", "Muon")
"""Optimizers in `torch.optim` that do."""


class DivisibleLearner(Divisible, Learner, Protocol):
    """A learner that can be divided."""


def divisible(policy: Learner, strategy: str) -> DivisibleLearner:
    """Return the learner if its model can be divided.

    Args:
        policy: the learner.
        strategy: value of `run.shard`.

    Raises:
        ModelError: it cannot.
    """
    if not isinstance(policy, Divisible):
        raise ModelError(
            f"run.shard = '{strategy}': {type(policy).__name__} does not implement rlcore.protocols.Divisible, so how "
            "to divide it is unknown: set run.shard=none, which keeps the whole model on every process"
        )
    policy.check_divisible(strategy)
    return policy


def copy_of(learner: DivisibleLearner, *, every_block: bool = False) -> nn.Module:
    """Return a copy of a learner's module, whose parameters are divided next; they are in the same memory until then.

    Args:
        learner: the learner, whose tied weights stay tied.
        every_block: see `rlcore.protocols.Divisible.lockstep_copy`.
    """
    own = {id(each): nn.Parameter(each.data, requires_grad=each.requires_grad) for each in learner.module.parameters()}
    return learner.lockstep_copy(own, every_block=every_block)


def run_divided(learner: DivisibleLearner, trained: nn.Module, run: Callable[..., Any], ranks: Ranks) -> None:
    """Let a learner run its own module without gradients, on whole weights, and divided ones with gradients.

    Called once the learner knows its shards (`use_shards`): weights that are still as in their files are read here.

    Args:
        learner: the learner.
        trained: the divided module, which gets the modes of the own one.
        run: calls the divided module.
        ranks: this process's place among the others.
    """

    def forward(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            learner.gather()
            return learner.module(*args, **options)
        for part, mode in zip(trained.modules(), learner.module.modules(), strict=True):
            part.training = mode.training
        return run(*args, **options)

    learner.use_forward(forward, autocast=ranks.accelerator.autocast if ranks.mixed_precision != "no" else nullcontext)


class StepsParts(ABC):
    """Steps the parts of weights that this process keeps: what `fsdp` and `tp` have in common."""

    name: ClassVar[str]
    was_skipped = False
    _learner: DivisibleLearner

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer.

        Raises:
            ConfigError: it reads whole tensors, as one with factorised or 8-bit moments does.
        """
        check_optimizer(optimizer, self.name)
        self.optimizer = optimizer
        return optimizer

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; a gradient whose norm is not finite makes no step."""
        norm = self._clip(max_norm)
        self.was_skipped = not bool(norm.isfinite())
        if not self.was_skipped:
            self.optimizer.step()
        self._learner.drop()
        self.discard()
        return norm if max_norm else None

    def discard(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    @abstractmethod
    def _clip(self, max_norm: float) -> Tensor:
        """Clip the gradient to a norm, if it is not 0; return the norm before, that of all parts on all processes."""


def check_optimizer(optimizer: Optimizer, strategy: str) -> None:
    """Check that an optimizer computes the same from parts of tensors.

    Args:
        optimizer: the optimizer.
        strategy: value of `run.shard`.

    Raises:
        ConfigError: it reads whole tensors, as Muon and one with factorised or 8-bit moments do.
    """
    whole = tuple(getattr(torch.optim, name) for name in OF_TORCH if hasattr(torch.optim, name))
    if isinstance(optimizer, whole) or type(optimizer).__module__.startswith(WHOLE_TENSORS):
        raise ConfigError(
            f"run.shard = '{strategy}': {type(optimizer).__name__} needs whole weights and gradients, of which each "
            "process has a part: choose an optimizer of torch, such as adamw, or run.shard=none"
        )


def open_process_group(ranks: Ranks) -> None:
    """Open the process group of a process that runs alone; several processes have theirs from the start."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        backend = torch.distributed.get_default_backend_for_device(ranks.device)
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)


TOGETHER = "of which DeepSpeed steps several together: resume with run.shard=fsdp or none"


@attrs.frozen(eq=False)
class Fragment:
    """What this process keeps of one parameter: consecutive elements of a flat tensor that its optimizer steps.

    Attributes:
        flat: the tensor, which holds elements of several parameters.
        shape: that of the whole parameter.
        start: index in `flat` of the first element.
        offset: index in the whole parameter of the first element.
        size: the number of elements.
    """

    flat: Tensor
    shape: torch.Size
    start: int = 0
    offset: int = 0
    size: int = 0

    def read(self, flat: Tensor, whole: Tensor) -> None:
        """Copy the elements of `flat`, which has the shape of the flat tensor, into a whole one."""
        whole.view(-1)[self.offset :][: self.size] = flat[self.start :][: self.size].to(whole.device)

    def write(self, whole: Tensor, flat: Tensor) -> None:
        """Copy the elements of a whole tensor into `flat`."""
        flat[self.start :][: self.size] = whole.reshape(-1)[self.offset :][: self.size].to(flat)


def gather_state(optimizer: Optimizer, groups: list[list[Fragment]], ranks: Ranks) -> dict[str, Any]:
    """Return the state that an optimizer of whole parameters would have, on rank 0; collective.

    Args:
        optimizer: steps the flat tensors.
        groups: the fragments of each of its groups of parameters.
        ranks: this process's place among the others; others than rank 0 return empty tensors.
    """

    def whole(fragment: Fragment, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != fragment.flat.shape:
            return value
        joined = torch.zeros(fragment.shape, dtype=value.dtype, device=ranks.device)
        fragment.read(value, joined)
        if ranks.world > 1:
            torch.distributed.reduce(joined, 0)  # elements of other processes are 0 here
        return joined.cpu() if ranks.is_main else torch.empty(0, dtype=value.dtype)

    state, numbered, index = {}, [], 0
    for group, fragments in zip(optimizer.param_groups, groups, strict=True):
        for number, fragment in enumerate(fragments, index):
            if kept := optimizer.state.get(fragment.flat):
                state[number] = {name: whole(fragment, value) for name, value in kept.items()}
        numbered.append({**group, "params": list(range(index, index + len(fragments)))})
        index += len(fragments)
    return {"state": state, "param_groups": numbered}


def load_state(optimizer: Optimizer, groups: list[list[Fragment]], saved: dict[str, Any]) -> None:
    """Restore a state of whole parameters, of which the optimizer keeps what its flat tensors hold.

    Raises:
        CheckpointError: the parameters of a flat tensor have made different numbers of steps.
    """
    flats = [list({id(each.flat): each.flat for each in fragments}.values()) for fragments in groups]
    numbers = {id(flat): number for number, flat in enumerate(flat for group in flats for flat in group)}
    state: dict[int, dict[str, Any]] = {}
    for number, fragment in enumerate(each for group in groups for each in group):
        kept, first = saved["state"].get(number, {}), numbers[id(fragment.flat)] not in state
        own = state.setdefault(numbers[id(fragment.flat)], {})
        if not first and bool(kept) != bool(own):
            raise CheckpointError(f"optimizer state is missing of parameters that have made no step, {TOGETHER}")
        for name, value in kept.items():
            if name != "step" and isinstance(value, Tensor) and value.shape == fragment.shape:
                own.setdefault(name, torch.zeros_like(fragment.flat, dtype=value.dtype, requires_grad=False))
                fragment.write(value, own[name])
            elif bool(own.setdefault(name, value) != value):
                raise CheckpointError(
                    f"optimizer state '{name}' differs between parameters ({own[name]} and {value}), {TOGETHER}"
                )
    options = [
        {**group, "params": [numbers[id(flat)] for flat in held]}
        for group, held in zip(saved["param_groups"], flats, strict=True)
    ]
    own_groups = [group["params"] for group in optimizer.param_groups]
    _set_parameters(optimizer, flats)
    load_optimizer(optimizer, {"state": {key: own for key, own in state.items() if own}, "param_groups": options})
    _set_parameters(optimizer, own_groups)


def _set_parameters(optimizer: Optimizer, parameters: list[list[Any]]) -> None:
    for group, held in zip(optimizer.param_groups, parameters, strict=True):
        group["params"] = held


__all__ = ["Cut", "Shards", "TensorStream"]  # the last by its former name


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

    def by_block(self, learner: Any, shards: Sequence[Shards]) -> AbstractContextManager[None]:
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


def divide(deepspeed: Any, weights: Mapping[nn.Parameter, Tensor], options: Mapping[str, Any]) -> None:
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

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer with whole tensors, one gathered at a time, in the memory of rank 0's CPU.

        Other ranks return empty tensors in their place.
        """
        return gather_state(self.optimizer.optimizer, self._fragments(), self.ranks)

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
