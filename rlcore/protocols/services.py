"""What implements options of the core that need a package: `run.push_to_hub`, `run.processes`, `checkpoint.format`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from rlcore.ranks import Ranks, Watchdog
    from rlcore.settings import TrainConfig


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
