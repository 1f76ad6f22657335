"""A run as plugins see it from outside: its view, loggers and subcommands.

Also in this file: strategies that divide a model among processes, and what a learner offers so that they can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlcore.components import Traits
from rlcore.protocols.learners import Learner
from rlcore.types import Metrics, Row, State

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rlcore.components import Dropped
    from rlcore.ranks import Ranks, Watchdog
    from rlcore.settings import TrainConfig


class RunView(Protocol):
    """A run, as loggers and observers see it; read-only, except that observers may end it with `request_stop`."""

    @property
    def dir(self) -> Path:
        """The run's folder."""
        ...

    @property
    def config(self) -> TrainConfig:
        """The resolved configuration."""
        ...

    @property
    def ranks(self) -> Ranks:
        """The processes of the run; `ranks.is_main` is True on rank 0, which writes files."""
        ...

    @property
    def step(self) -> int:
        """Number of steps done."""
        ...

    @property
    def total_steps(self) -> int | None:
        """Number of steps after which the run ends; None if only `run.time_s` limits it."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """The last value of every metric."""
        ...

    @property
    def headline(self) -> Sequence[str]:
        """The metrics that the trainer names as those that matter most; empty if it names none."""
        ...

    @property
    def export_class(self) -> str:
        """Name of the class of `transformers`, or in full of another package's, that loads the trained model."""
        ...

    @property
    def dropped(self) -> Sequence[Dropped]:
        """The observers, loggers and wrappers that raised and are disabled for the rest of the run."""
        ...

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, with a checkpoint and the trained model.

        Args:
            reason: logged at the end; a later request keeps the first reason.
        """
        ...

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after the current step; a component that waits for long checks it."""
        ...

    def keep_folder(self) -> None:
        """Keep the run's folder even if the first step fails, because it contains something that cannot be repeated."""
        ...

    def take_unreported(self) -> Sequence[Dropped]:
        """Return the entries of `dropped` that no closing summary has listed yet, and mark them as listed."""
        ...


class Logger(Protocol):
    """A destination of metrics besides `metrics.jsonl`, built as `Logger(config, run)` on rank 0 only.

    `run` is a `rlcore.protocols.RunView`. If a logger raises, the error is logged once, and the logger is closed and
    not called again in that run; with `RLCORE_STRICT_PLUGINS` set, the run ends with a `PluginError`.
    """

    def metrics(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of a training step or an evaluation.

        Args:
            step: number of steps done, this one included; 0 for an evaluation before the first.
            metrics: numbers by name, which may be nan or infinite; an evaluation's names begin with `eval/`.
        """
        ...

    def completions(self, step: int, rows: Sequence[Row]) -> None:
        """Log the completions of an evaluation.

        Args:
            step: number of steps done.
            rows: one per completion: `prompt`, `output`, `length`, `ended`, and its scores; of a conversation also its
                `messages`, which `rlcore.loggers.display_row` puts in place of the rendered prompt.
        """
        ...

    def close(self, error: BaseException | None) -> None:
        """Close the logger; the last call, made whether or not the run failed.

        Args:
            error: the exception that ended the run, or None.
        """
        ...


class LoggerTraits(Traits):
    """What the class of a logger may state for the conformance kit beside `Logger`."""

    writes_outside: Callable[[Any, RunView], Sequence[Path | str]] | None = None
    """A static method `writes_outside(config, run)` that returns the paths of files outside `run.dir`."""
    keeps_elsewhere: bool = False
    """Whether metrics are in a service, or in a database that several runs share."""


class Command(Protocol):
    """A subcommand of `rlcore`: a function that adds arguments to a parser and returns the function to run.

    `rlcore NAME --help` and shell completion call it too, so its module must not import torch or other slow packages;
    the returned function may. An argument called `overrides` with `nargs="*"` accepts words such as
    `trainer.clip=0.1` at any position among the options, as in `rlcore train`.
    """

    def __call__(self, parser: ArgumentParser) -> Callable[[Namespace], int]:
        """Add arguments to the parser, and a `parser.description` if the summary is too short.

        Args:
            parser: an empty parser for `rlcore NAME`. Its `error` prints a usage error in one line and exits with 2.

        Returns:
            The function that runs the command: it receives the parsed arguments and returns the exit code, 0 for
            success. If it raises an `RLCoreError`, the error is printed in one line and the exit code is 1.
        """
        ...


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

    def state_dict(self) -> State:
        """Return the state of the optimizer; collective.

        Tensors are whole on rank 0, or divided ones (`DTensor`), which are made whole while they are written.
        """
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore the state of the optimizer.

        Args:
            state: whole tensors, or with `divides_rows` files of tensors (`rlcore.sharding.SavedTensor`),
                which any strategy on any number of processes wrote.
        """
        ...


@runtime_checkable
class Divisible(Protocol):
    """A `Learner` whose weights can be divided among processes (`run.shard`).

    A strategy trains a copy of `module`, of which each process keeps a part, and passes these parts to `use_shards`.
    From then on `module` runs without gradients: `gather` completes its weights, and `drop` frees them. A learner whose
    weights are those of `module` inherits all methods but `blocks` from `rlcore.sharding.DividedModule`.
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
        context yields (`rlcore.sharding.TensorStream`). The others join in assembling the tensors.

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
        """Return the tensors in a folder by name, each read when it is indexed (`rlcore.sharding`).

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
