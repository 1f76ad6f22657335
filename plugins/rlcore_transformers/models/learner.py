"""What policies and scorers made of a `transformers` model have in common: its device, its passes, its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rlcore.errors import ModelError
from rlcore.sharding import DividedModule, TensorStream
from rlcore_transformers.models.forward import ModelModule, is_compiled
from rlcore_transformers.models.freezing import blocks_of, complete, start_dtypes
from rlcore_transformers.models.hub import file_layout, read_model, write_model
from rlcore_transformers.models.peft.adapters import find_adapters, merged_weights
from rlcore_transformers.models.save_load import (
    export_policy,
    is_quantized,
    load_policy,
    read_heads,
    save_policy,
    save_start,
)

M = TypeVar("M", bound=ModelModule)


class ModelLearner(DividedModule, Generic[M]):
    """A module around a model of `transformers` (`rlcore.protocols.Learner` and `Divisible`).

    Args:
        module: the model with its heads, as its attribute `model`.
        tokenizer: the model's tokenizer.
        max_length: the largest number of tokens of a sequence; 0 if unlimited.

    Attributes:
        version: number of changes of the weights so far.
    """

    def __init__(self, module: M, tokenizer: PreTrainedTokenizerBase, *, max_length: int) -> None:
        self.module: M = module
        self._stream: TensorStream | None = None
        self._omits_weights = False
        self.tokenizer, self.max_length, self.version = tokenizer, max_length, 0
        self._forward: Callable[..., Any] = module
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    @property
    def model(self) -> PreTrainedModel:
        """Return the model of `transformers`."""
        return self.module.model

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        return self.model.device

    def to(self, device: torch.device) -> None:
        """Move the model and its heads to `device`, but not weights of which processes move their own parts later."""
        waiting = self.start_dtypes()
        if not waiting:
            self.module.to(device)
            return
        for each in (*self.module.parameters(), *self.module.buffers()):
            if id(each) not in waiting:
                each.data = each.data.to(device)

    def start_models(self) -> Sequence[object]:
        """Return the models whose weights may be as in their files."""
        return (self.model,)

    def start_dtypes(self) -> dict[int, torch.dtype]:
        """Return the dtypes that weights shall have which are as in their files, by the id of the parameter.

        What divides them converts each process's part, and calls `started`.
        """
        return start_dtypes(*self.start_models())

    def started(self) -> None:
        """Note that the weights are no longer those in the files; those that still are become so."""
        complete(*self.start_models())

    def use_forward(self, forward: Callable[..., Any], *, autocast: Callable[[], AbstractContextManager[Any]]) -> None:
        """Score through `forward` instead of the module, and run all passes inside the context `autocast()` returns."""
        self.started()
        self._forward, self._autocast = forward, autocast

    def check_divisible(self, strategy: str) -> None:
        """Check that the weights can be divided.

        Raises:
            ModelError: they are quantized, or the blocks are compiled.
        """
        if is_compiled(self.model):
            raise ModelError(
                f"run.shard = '{strategy}': blocks that model.compile compiles cannot be divided: leave out "
                "model.compile, or set run.shard=none, which keeps the whole model on every process"
            )
        if is_quantized(self.model):
            raise ModelError(
                f"run.shard = '{strategy}': {type(self.model).__name__} has quantized weights, which cannot be "
                "divided: leave out model.quantization, or set run.shard=none, which keeps the whole model on every "
                "process"
            )

    def lockstep_copy(self, memo: dict[int, object], *, every_block: bool = False) -> nn.Module:
        """Return a copy of `module` that runs every block once in each forward pass (`rlcore.protocols.Divisible`)."""
        return self.module.lockstep_copy(memo, every_block=every_block)

    def blocks(self, trained: nn.Module) -> list[nn.Module]:
        """Return the blocks of every model inside a module, by the names that its class declares; nested ones first.

        Raises:
            ModelError: how to divide the model is unknown.
        """
        return blocks_of(trained)

    @contextmanager
    def streaming(
        self, further: Sequence[Tensor] = (), *, here: bool, merged: bool = False, omit_weights: bool = False
    ) -> Iterator[TensorStream]:
        """Let the processes that pass `here` write the weights inside the context; collective.

        They call `save_pretrained`, or `export` where `merged` is true, inside `TensorStream.finishing`. The others
        join in streaming the tensors.

        Args:
            further: parts of other tensors that are written afterwards, with `TensorStream.take`.
            here: whether this process writes.
            merged: complete the whole model in the CPU's memory, if it has an adapter that `export` merges.
            omit_weights: leave out the `divided_weights`, which are written elsewhere.
        """
        parts: list[Tensor] = []
        self._omits_weights = omit_weights
        with ExitStack() as stack:
            for shards in self._shards[:1]:
                stack.enter_context(shards.emptied())
                if not shards.is_whole:
                    is_streamed = self._layout(shards) is not None and not (merged and self.saves_part)
                    stack.enter_context(nullcontext() if is_streamed else shards.gathered(here=here))
                    parts += [part for _, part in shards.named_parts(self._saved_names(shards))] if is_streamed else []
            stream = TensorStream([*parts, *further], *(shards.cut.join for shards in self._shards[:1]))
            if not here:
                stream.finish()
            self._stream = stream if parts else None
            try:
                yield stream
            finally:
                self._stream, self._omits_weights = None, False

    def _layout(self, shards: Any) -> dict[str, Tensor] | None:
        """Return the layout of the model's file; None if it cannot be written one tensor at a time."""
        if self.saves_part:
            return {}
        shapes = shards.shapes
        return file_layout(self.model, {id(each): shapes[name] for name, each in self.module.named_parameters()})

    def _saved_names(self, shards: Any) -> set[str]:
        """Return the names of the parameters that `save_pretrained` writes."""
        adapters = find_adapters(self.model)
        if adapters is None and not self._omits_weights:
            return set(shards.shapes)
        saved = set() if adapters is None else adapters.saved_parameters()
        own = {id(each) for each in self.model.parameters()}
        return {name for name, each in self.module.named_parameters() if id(each) in saved or id(each) not in own}

    def divided_weights(self) -> dict[str, Tensor]:
        """Return the weights that `save_pretrained` writes to the model's file: of each, what this process keeps.

        Empty if the weights are not divided, if only an adapter is written, and if the file is not written one tensor
        at a time.
        """
        for shards in self._shards[:1]:
            layout, own = self._layout(shards) or {}, self.model.state_dict(keep_vars=True)
            parts = {id(each): part for each, part in zip(self.module.parameters(), shards.parts, strict=True)}
            return {name: parts.get(id(own[name]), own[name]).detach() for name in layout}
        return {}

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and value of every weight of the model as `transformers` names them, one at a time.

        They are those that `export` writes: adapters are merged, one layer at a time, tied weights are yielded once,
        and heads are left out. Every process iterates to the end, because divided weights are gathered one after
        another. This is what samplers in other processes load.
        """
        own = {id(each): name for name, each in self.model.named_parameters()}
        by_name = dict(self.module.named_parameters())
        values = ((name, weight.detach()) for name, weight in by_name.items())
        stream = self._shards[0].stream() if self._shards else values
        weights = ((by_name[name], each) for name, each in stream if id(by_name[name]) in own)
        if self.saves_part:
            yield from merged_weights(self.model, weights)
        else:
            yield from ((own[id(parameter)], each) for parameter, each in weights)

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: nothing is cached within a step."""
        return nullcontext()

    def save_pretrained(self, folder: Path) -> None:
        """Write model, tokenizer and heads; for a model with an adapter only the adapter, in the format of `peft`."""
        if self._stream is None and not self._omits_weights:
            save_policy(folder, self.module, self.tokenizer)
            return
        weights = iter(()) if self._stream is None else self._streamed(self._shards[0], self._stream)
        if self.saves_part or self._omits_weights:
            for _ in weights:
                pass

        def write(place: Path, model: PreTrainedModel) -> None:
            layout = {} if self._omits_weights else self._layout(self._shards[0])
            write_model(place, model, layout or {}, weights)

        save_policy(folder, self.module, self.tokenizer, save_model=write)

    def _streamed(self, shards: Any, stream: TensorStream) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield each parameter of the model and its whole value; complete the heads and adapters."""
        by_name, own = dict(self.module.named_parameters()), {id(each) for each in self.model.parameters()}
        for name, part in shards.named_parts(self._saved_names(shards)):
            whole = stream.take(part)
            if id(by_name[name]) in own and not self.saves_part:
                yield by_name[name], whole
            else:
                shards.complete(name, whole)

    def load_pretrained(self, folder: Path) -> None:
        """Load the weights of model and heads from a folder that `save_pretrained` wrote.

        Raises:
            CheckpointError: the folder cannot be read, or contains another model or other heads.
        """
        layout = self._layout(self._shards[0]) if self._shards else None
        if layout:
            self._load_parts(folder, self._shards[0], layout)
        else:
            with self.overwriting():
                load_policy(folder, self.module)
        self.version += 1

    def _load_parts(self, folder: Path, shards: Any, layout: dict[str, Tensor]) -> None:
        """Load this process's parts of the model's weights, one tensor at a time, and the whole heads."""
        own = {id(each) for each in self.model.parameters()}
        by_name = dict(self.module.named_parameters())
        heads = shards.named_parts({name for name, each in by_name.items() if id(each) not in own})
        shards.drop()
        parts = {id(by_name[name]): part for name, part in shards.named_parts(by_name)}
        with shards.emptied(), torch.no_grad():
            for name, part in heads:
                shards.complete(name, shards.cut.join(part))
            found = read_heads(folder, self.module)
            for parameter, saved in read_model(folder, self.model, layout):
                if id(parameter) in parts:
                    shards.load(parts[id(parameter)], saved)
                else:
                    parameter.copy_(saved[...])  # a buffer
            for weight, value in found:
                weight.copy_(value)
            for name, part in heads:
                shards.load(part, by_name[name])

    def export(self, folder: Path) -> None:
        """Write a model that plain `transformers` loads; an adapter is merged, and also saved in `adapter/`."""
        if not self.saves_part:
            self.save_pretrained(folder)
            return
        export_policy(folder, self.module, self.tokenizer)

    @property
    def saves_part(self) -> bool:
        """Return whether `save_pretrained` writes only an adapter, without its base model."""
        return find_adapters(self.model) is not None

    def save_start(self, folder: Path) -> None:
        """Write the base model before training, from which it can be rebuilt if the model has no name.

        Raises:
            ModelError: the adapter has changed weights of the base model.
        """
        save_start(folder, self.module, self.tokenizer)

    def note_start(self, folder: Path) -> None:
        """Set `folder` as the base model in the adapter's configuration, if no base model is set there."""
        adapters = find_adapters(self.model)
        if adapters is not None and not adapters.config.base_model_name_or_path:
            adapters.config.base_model_name_or_path = str(folder.resolve())
