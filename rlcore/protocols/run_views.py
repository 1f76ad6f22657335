"""A run as plugins see it from outside: its view, loggers and subcommands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.types import Metrics

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from rlcore.components import Dropped
    from rlcore.ranks import Ranks
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
    not called again in that run; with `RLCORE_STRICT_PLUGINS` set, the run ends with a `PluginError`. A logger that
    writes files outside `run.dir` has an attribute `writes_outside`, a function `(config, run)` that returns their
    paths, for the conformance kit.
    """

    def metrics(self, step: int, metrics: Metrics) -> None:
        """Log the metrics of a training step or an evaluation.

        Args:
            step: number of steps done, this one included; 0 for an evaluation before the first.
            metrics: numbers by name, which may be nan or infinite; an evaluation's names begin with `eval/`.
        """
        ...

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
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
