"""What a learner offers so that its weights can be divided among processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Divisible(Protocol):
    """A `Learner` whose weights can be divided among processes (`run.shard`).

    A strategy trains a copy of `module`, of which each process keeps a part, and passes these parts to `use_shards`.
    From then on `module` runs without gradients: `gather` completes its weights, and `drop` frees them. A learner whose
    weights are those of `module` inherits all methods but `blocks` from `rlcore.sharding.divided.DividedModule`.
    """

    def check_divisible(self, strategy: str) -> None:
        """Check that the weights can be divided.

        Args:
            strategy: value of `run.shard`, for the message.

        Raises:
            ModelError: they cannot, for example because they are quantized.
        """
        ...

    def lockstep_copy(self, memo: dict[int, Any], *, every_block: bool = False) -> torch.nn.Module:
        """Return a copy of `module` that runs the same blocks in every pass on every process, whatever the batch.

        Processes gather each block together.

        Args:
            memo: the parameters of the copy, by the id of the original (as for `copy.deepcopy`).
            every_block: run also blocks whose outputs are cached.
        """
        ...

    def blocks(self, trained: torch.nn.Module) -> Sequence[torch.nn.Module]:
        """Return the parts of a module that are gathered one after another, such as its layers; nested ones first.

        Args:
            trained: what `lockstep_copy` returned.

        Raises:
            ModelError: how to divide the model is unknown.
        """
        ...

    def frozen_parameters(self) -> Mapping[str, torch.nn.Parameter]:
        """Return the parameters beside `module`, such as those of a reference, that are needed without gradients."""
        ...

    def use_shards(self, *shards: Any) -> None:
        """Divide the weights among processes.

        Args:
            shards: the parts of the weights of `module`, then those of `frozen_parameters`
                (`rlcore.sharding.shards.Shards`).
        """
        ...

    def gather(self) -> None:
        """Complete the weights on every process; collective."""
        ...

    def drop(self) -> None:
        """Free the memory of the whole weights."""
        ...

    def streaming(
        self, further: Sequence[Tensor] = (), *, here: bool, merged: bool = False, omit_weights: bool = False
    ) -> AbstractContextManager[Any]:
        """Return a context in which the processes that pass `here` write the weights; collective.

        They call `save_pretrained`, or `export` where `merged` is true, inside `TensorStream.finishing` of what the
        context yields (`rlcore.sharding.shards.TensorStream`). The others join in assembling the tensors.

        Args:
            further: parts of other tensors that are written afterwards, with `TensorStream.take`.
            here: whether this process writes.
            merged: whether `export` is called.
            omit_weights: leave out the `divided_weights`, which are written elsewhere.
        """
        ...

    def divided_weights(self) -> Mapping[str, Tensor]:
        """Return the weights of the model's file, of each what this process keeps, by their names in the file.

        Empty if the weights are not divided, or if the file is not written one tensor at a time.
        """
        ...

    def parts(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of every weight of `module` and what this process keeps of it."""
        ...

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name and whole value of every weight that `export` writes, one at a time.

        Every process iterates to the end, because divided weights are gathered one after another. This is what
        samplers in other processes load.
        """
        ...
