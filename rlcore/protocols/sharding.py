"""Strategies that divide a model among processes, and what a learner offers so that they can.

Also in this file: what implements options of the core that need a package: `run.push_to_hub`, `run.processes`,
`checkpoint.format`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlcore.protocols.learners import Learner

if TYPE_CHECKING:
    from rlcore.ranks import Ranks, Watchdog
    from rlcore.settings import TrainConfig


class Sharding(Protocol):
    """A strategy (`run.shard`), as the updater sees it.

    It is registered as a function `build(config, ranks)` of `rlcore.settings.RunConfig` and `rlcore.ranks.Ranks`. The
    learner keeps the parts of its weights, and completes them for passes without gradients, for files and for samplers.
    """

    was_skipped: bool
    """Whether the last `step` made no step, because a gradient was not finite."""
    divides_rows: bool
    """Whether what it divides are rows of tensors (`DTensor`), which `checkpoint.format=dcp` needs."""

    def cut(self, policy: Learner) -> list[torch.nn.Parameter]:
        """Wrap the module of `policy`, and return what the optimizer changes, in the order of its parameters.

        Args:
            policy: the learner.

        Raises:
            ModelError: the model cannot be divided in this way.
        """
        ...

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer that `step` steps.

        Args:
            optimizer: an optimizer of the parameters that `cut` returned.

        Raises:
            ConfigError: the optimizer needs whole tensors.
        """
        ...

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of the passes of one micro-batch; processes exchange gradients in the last one.

        Args:
            last: whether this is the last micro-batch before a step.
        """
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss.

        Args:
            loss: this process's share of a sum over all processes.
        """
        ...

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; return the norm of the whole gradient before it was clipped.

        A gradient whose norm is not finite makes no step, on any process.

        Args:
            max_norm: 0 does not clip, and returns None.
        """
        ...

    def discard(self) -> None:
        """Clear the gradients, in place of a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer; collective.

        Tensors are whole on rank 0, or divided ones (`DTensor`), which are made whole while they are written.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state of the optimizer.

        Args:
            state: whole tensors, or with `divides_rows` files of tensors (`rlcore.sharding.tensor_file.SavedTensor`),
                which any strategy on any number of processes wrote.
        """
        ...


@runtime_checkable
class Divisible(Protocol):
    """A `Learner` whose weights can be divided among processes (`run.shard`).

    A strategy trains a copy of `module`, of which each process keeps a part, and passes these parts to `use_shards`.
    From then on `module` runs without gradients: `gather` completes its weights, and `drop` frees them. A learner whose
    weights are those of `module` inherits all methods but `blocks` from `rlcore.sharding.whole.DividedModule`.
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
            shards: the parts of the weights of `module`, then those of `frozen_parameters`; `DividedModule` lists what
                is called of them.
        """
        ...

    def gather(self) -> None:
        """Complete the weights of `module` on every process; collective."""
        ...

    def by_block(self) -> AbstractContextManager[None]:
        """Return a context in which passes without gradients complete one block at a time, and `gather` does nothing.

        Processes enter and leave it together, exchange nothing else in it, and may make different numbers of passes.
        """
        ...

    def drop(self) -> None:
        """Free the memory of the whole weights."""
        ...

    def streaming(
        self, further: Sequence[Tensor] = (), *, here: bool, merged: bool = False, omit_weights: bool = False
    ) -> AbstractContextManager[Any]:
        """Return a context in which the processes that pass `here` write the weights; collective.

        They call `save_pretrained`, or `export` where `merged` is true, inside `TensorStream.finishing` of what the
        context yields (`rlcore.sharding.whole.TensorStream`). The others join in assembling the tensors.

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


class Uploader(Protocol):
    """Uploads trained models, for `run.push_to_hub` and `result.push_to_hub`; a module may be one."""

    def check(self, repo: str, where: str) -> None:
        """Check before a run that its model can be uploaded to a repository after it.

        Args:
            repo: `user/name`.
            where: name of the configuration, for errors.

        Raises:
            ConfigError: it cannot.
        """
        ...

    def push(
        self, folder: Path, repo: str, *, run: Path | None, private: bool | None, token: str | None,
        revision: str | None,
    ) -> str:  # fmt: skip
        """Upload a model's folder and return the URL.

        Args:
            folder: the model's folder.
            repo: `user/name`; created if it does not exist.
            run: the run's folder, for messages.
            private: whether a repository that is created is private; None leaves that to the hub.
            token: access token; None for that of the environment.
            revision: branch to push to.

        Raises:
            HubError: the hub cannot be reached, or refuses the upload.
        """
        ...


class ParallelFiles(Protocol):
    """Writes and reads the tensors of which each process keeps rows (`DTensor`), as folders; a module may be one."""

    def check_shared(self, folder: Path, ranks: Ranks) -> None:
        """Check before a run that every process sees the folder in which process 0 writes; collective.

        Args:
            folder: the run's folder.
            ranks: this process's place among the others.

        Raises:
            ConfigError: a process does not see it.
        """
        ...

    def stage(
        self, folder: Path, ranks: Ranks, *, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]
    ) -> StagedFiles:
        """Write what each process keeps of weights and of other tensors to a temporary folder; collective.

        Args:
            folder: the temporary folder.
            ranks: this process's place among the others.
            weights: by name, what this process keeps of each weight; empty if they are written elsewhere.
            state: likewise of other tensors, such as moments of the optimizer.
        """
        ...

    def read(self, folder: Path) -> Mapping[str, Any]:
        """Return the tensors in a folder by name, each read when it is indexed (`rlcore.sharding.tensor_file`).

        Args:
            folder: a folder that was staged and moved.

        Raises:
            CheckpointError: the folder cannot be read.
        """
        ...


class StagedFiles(Protocol):
    """Folders of tensors that are written and not yet part of a checkpoint."""

    @property
    def has_weights(self) -> bool:
        """Whether weights are among them."""

    @property
    def has_state(self) -> bool:
        """Whether other tensors are among them."""

    @property
    def entries(self) -> Mapping[str, Mapping[str, Any]]:
        """Path in the checkpoint → entry in its manifest, of every file in the folders."""

    def move(self, checkpoint: Path) -> None:
        """Move the folders into that of a checkpoint, or raise what kept them from being written.

        Args:
            checkpoint: the folder of the checkpoint.
        """

    def remove(self) -> None:
        """Delete what has not been moved."""


class Processes(Protocol):
    """Starts the processes of a run, and watches those of any launcher; a module may be one."""

    def start(self, processes: int, words: Sequence[str]) -> int:
        """Run `rlcore *words` in several processes, on this machine or a cluster, and return the exit code.

        Args:
            processes: their number, `run.processes`.
            words: the arguments of the command.
        """
        ...

    def accept_launch(self, config: TrainConfig) -> None:
        """Prepare for what the launcher of this process was told, before the process meets the others.

        Args:
            config: the configuration of the run.

        Raises:
            RanksError: the launcher was told to do what the options of the run do not do.
        """
        ...

    def watch(self, rank: int, world: int, timeout_s: float) -> Watchdog:
        """Return what notices and explains that a process of the run hangs or has ended.

        Args:
            rank: index of this process.
            world: number of processes.
            timeout_s: seconds for which a process may be waited for.
        """
        ...
