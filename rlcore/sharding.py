"""Every process keeps the whole model: one process, or several with DistributedDataParallel through `accelerate`.

Also in this file: learners whose weights are divided among processes, and what the rest of a run calls of any
learner; files of tensors that are written and read one at a time, so that they need not be in memory together.
"""

from __future__ import annotations

import copy
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, TypeGuard, TypeVar

import attrs
import torch
from safetensors.torch import save
from torch import Tensor, detach, nn
from torch.optim import Optimizer

from rlcore.errors import ConfigError, RanksError
from rlcore.plugins.observers import find_parallel_files
from rlcore.protocols import Divisible, Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.types import State

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class WholeModel:
    """The strategy `none` (`rlcore.protocols.Sharding`).

    Attributes:
        wrapped: the module as it is called: itself, or DistributedDataParallel.
    """

    divides_rows = False

    def __init__(self, ranks: Ranks) -> None:
        self.ranks, self.was_skipped = ranks, False

    def cut(self, policy: Learner) -> list[nn.Parameter]:
        """Wrap the module; its parameters stay what they are."""
        accelerator = self.ranks.accelerator
        self.wrapped: nn.Module = accelerator.prepare(policy.module)
        self.parameters = [p for p in policy.module.parameters() if p.requires_grad]
        is_mixed = accelerator.mixed_precision != "no"
        policy.use_forward(self.wrapped, autocast=accelerator.autocast if is_mixed else nullcontext)
        return self.parameters

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer, wrapped if gradients are scaled."""
        # The wrapper looks for a package on the disk at every step; nothing but the scaler of fp16 needs it.
        scaled = self.ranks.accelerator.prepare(optimizer)
        self.optimizer: Any = optimizer if self.ranks.accelerator.scaler is None else scaled
        return self.optimizer

    @contextmanager
    def exchanging(self, last: bool) -> Iterator[None]:
        """Exchange gradients in the backward pass of the last micro-batch only.

        Raises:
            RanksError: a parameter received no gradient in the step before, so that the ranks could not exchange it.
        """
        try:
            with nullcontext() if last else self.ranks.accelerator.no_sync(self.wrapped):
                yield
        except RuntimeError as error:
            if "Expected to have finished reduction" not in str(error):
                raise
            raise RanksError(
                "a trainable parameter received no gradient in a step, such as an expert to which no token was routed; "
                "several processes can only train models that use every parameter in every step: run one process"
            ) from error

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of one micro-batch's loss."""
        # Wrapped modules average over ranks; the loss is a share of one global sum.
        self.ranks.accelerator.backward(loss * self.ranks.world if self.ranks.world > 1 else loss)

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; a gradient whose norm is not finite makes no step."""
        scaler, norm = self.ranks.accelerator.scaler, None
        if max_norm:
            norm = self.ranks.accelerator.clip_grad_norm_(self.parameters, max_norm)
        elif scaler is None:
            norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        self.was_skipped = norm is not None and not bool(norm.isfinite())
        if not self.was_skipped:
            self.optimizer.step()
            self.was_skipped = scaler is not None and self.optimizer.step_was_skipped
        elif scaler is not None:
            scaler.update()  # the optimizer's wrapper would do it in its step
        self.optimizer.zero_grad()
        return norm if max_norm else None

    def discard(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    def state_dict(self) -> State:
        """Return the state of the optimizer."""
        state: State = self.optimizer.state_dict()
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore the state of the optimizer."""
        load_optimizer(self.optimizer, state)


def build_none(config: RunConfig, ranks: Ranks) -> WholeModel:
    """Return the strategy `none`.

    Raises:
        ConfigError: `run.offload` is set, which needs parts to keep elsewhere.
    """
    if config.offload:
        raise ConfigError("run.offload: needs run.shard=fsdp, zero2 or zero3, whose parts it keeps in the CPU's memory")
    return WholeModel(ranks)


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the exact state of an optimizer.

    Torch casts loaded tensors to the type of their parameters. Tensors that an optimizer keeps in another type, such as
    moments in 32 bits, are put back in that type.
    """
    optimizer.load_state_dict(saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in saved["state"].items():
        for name, value in kept.items() if isinstance(kept, dict) and isinstance(index, int) else ():
            loaded = optimizer.state[parameters[index]].get(name)
            if isinstance(loaded, Tensor) and isinstance(value, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[parameters[index]][name] = value.to(loaded.device)


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

    def lockstep_copy(self, memo: dict[int, object], *, every_block: bool = False) -> nn.Module:  # noqa: ARG002
        """Return a copy of `module`, which runs the same blocks in every pass."""
        trained: nn.Module = copy.deepcopy(self.module, memo)
        return trained

    def frozen_parameters(self) -> Mapping[str, nn.Parameter]:
        """Return the parameters beside `module` that are needed without gradients: none."""
        return {}

    def use_shards(self, *shards: object) -> None:
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
            yield name, part.to_local() if is_dtensor(part) else part.detach()


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return whether `value` is a `DTensor`, without the import of its module, which takes a CPU second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


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


SUFFIX = ".dcp"
"""Suffix of the folder in which tensors are that a file with the suffix `.safetensors` has otherwise."""
SINGLE, INDEX, PARTS = "model.safetensors", "model.safetensors.index.json", f"model{SUFFIX}"
"""Files of a model's weights, as the libraries of Hugging Face name them, and the folder in their place."""
LARGEST = "50GB"
"""Size from which the weights are written to several files; the default of `transformers`."""


@attrs.frozen(eq=False)
class SavedTensor:
    """A tensor in a file: `saved[...]` reads it whole, `saved[first:last]` its rows.

    Attributes:
        shape: the shape of the whole tensor.
        dtype: the type of its elements.
        read: returns what is indexed, in memory of its own.
    """

    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[slice | EllipsisType], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> SavedTensor:
        """Return a tensor of torch, which safetensors leaves in its file until it is read, as a saved one."""
        # Copies, because the file's memory is not aligned, and kernels may round differently on unaligned memory.
        return cls(tensor.shape, tensor.dtype, lambda rows: tensor[rows].clone())

    def __getitem__(self, rows: slice | EllipsisType) -> Tensor:
        """Read the tensor, or rows of it."""
        return self.read(rows)


def saved_parts(folder: Path) -> Mapping[str, SavedTensor]:
    """Return the tensors in a folder that all processes wrote in parallel; empty if there is no folder.

    Raises:
        CheckpointError: the folder cannot be read.
        ConfigError: no plugin reads it.
    """
    return find_parallel_files(str(folder)).read(folder) if folder.is_dir() else {}


class TensorFile:
    """A safetensors file whose tensors are written in any order, each once, in the block of a `with` statement.

    Args:
        path: the file; one that exists is replaced.
        layout: name → a tensor of the shape and dtype that will be written; its values are not read.
        metadata: the file's metadata.
    """

    def __init__(self, path: Path, layout: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        header: dict[str, object] = {"__metadata__": dict(metadata)}
        self._offsets: dict[str, int] = {}
        self._layout, end = layout, 0
        # Tensors of large numbers first, as safetensors orders them, so that each is aligned in the file.
        for name in sorted(layout, key=lambda each: (-layout[each].dtype.itemsize, each)):
            like, self._offsets[name] = layout[name], end
            end += like.numel() * like.dtype.itemsize
            header[name] = {
                "dtype": _dtype_name(like.dtype), "shape": list(like.shape),
                "data_offsets": [self._offsets[name], end],
            }  # fmt: skip
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        self._data = 8 + len(text)
        self._file = path.open("wb")
        self._file.write(len(text).to_bytes(8, "little") + text)
        self._file.truncate(self._data + end)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the values of a tensor.

        Raises:
            ValueError: the tensor has another shape or dtype than in the layout, or was written before.
            OSError: the file cannot be written.
        """
        like = self._layout[name]
        if (tensor.shape, tensor.dtype) != (like.shape, like.dtype):
            raise ValueError(
                f"{self._file.name}: {name} is {tensor.dtype} {list(tensor.shape)}, not {like.dtype} {list(like.shape)}"
            )
        if name not in self._offsets:
            raise ValueError(f"{self._file.name}: {name} was written before")
        self._file.seek(self._data + self._offsets.pop(name))
        self._file.write(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the file.

        Raises:
            ValueError: tensors of the layout were not written, and nothing else failed.
        """
        self._file.close()
        if self._offsets and kind is None:
            raise ValueError(f"{self._file.name}: not written: {', '.join(sorted(self._offsets)[:5])}")


def write_weights(folder: Path, layout: Mapping[str, Tensor], weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write the weights of a model to one file, or to several with an index.

    Args:
        folder: the folder.
        layout: name → a tensor of the shape and dtype of a weight.
        weights: the name and value of each.
    """
    from huggingface_hub import split_torch_state_dict_into_shards

    plan = split_torch_state_dict_into_shards(
        dict(layout), filename_pattern="model{suffix}.safetensors", max_shard_size=LARGEST
    )
    with ExitStack() as stack:
        files = {
            file: stack.enter_context(
                TensorFile(folder / file, {name: layout[name] for name in held}, {"format": "pt"})
            )
            for file, held in plan.filename_to_tensors.items()
        }
        for name, whole in weights:
            files[plan.tensor_to_filename[name]].write(name, whole)
    if plan.is_sharded:
        index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
        (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype in headers of safetensors."""
    content = save({"t": torch.empty(0, dtype=dtype)})
    return str(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["t"]["dtype"])
