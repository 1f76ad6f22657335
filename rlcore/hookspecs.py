"""The door: every hook a plugin may implement, on one screen.

A plugin is a light module (no torch) named in the entry-point group `rlcore`. Choose one by name: a register hook.
Tell everyone: an observer. Per token: neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from rlcore.run import Run
    from rlcore.types import Trajectories

PROJECT = "rlcore"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class Register(Protocol):
    """What a register hook calls, once for each component it brings."""

    def __call__(self, name: str, target: Any, *, config: Any = None, summary: str = "") -> None:
        """Register a component.

        Args:
            name: what a user writes to choose it; `dist:name` in full.
            target: the component, or `"module:attribute"`, imported on first use.
            config: its `@rlcore.config.config` class, or `"module:attribute"`; None where it has no options.
            summary: one line for `rlcore show`.
        """
        ...


@hookspec
def register_trainers(register: Register) -> None:
    """Register algorithms: `Trainer(config, run)`, see `rlcore.protocols.Trainer`."""


@hookspec
def register_pipelines(register: Register) -> None:
    """Register ways to turn a source of text into prompts or samples, with options as for samplers."""


@hookspec
def register_architectures(register: Register) -> None:
    """Register ways to turn a model spec into a policy, see `rlcore.protocols.Policy`."""


@hookspec
def register_rollout_stores(register: Register) -> None:
    """Register places where trajectories wait: `Store()`, or `Store(config)` with options; see `RolloutStore`."""


@hookspec
def register_loggers(register: Register) -> None:
    """Register places where metrics go: `Logger(config, run)`, see `rlcore.protocols.Logger`."""


@hookspec
def register_samplers(register: Register) -> None:
    """Register ways to generate rollouts: a `rlcore.protocols.Sampler`; with options, what returns one for them."""


@hookspec
def register_rewards(register: Register) -> None:
    """Register reward functions, chosen by name in a configuration file."""


@hookspec
def on_run_start(run: Run) -> None:
    """Hear that a run begins; observers read and never change what they are given.

    Observers hear on every rank: ask `run.ranks.is_main` before writing anything.
    """


@hookspec
def on_rollout(run: Run, batch: Trajectories) -> None:
    """Hear of trajectories just sampled and rewarded."""


@hookspec
def on_step(run: Run, metrics: Mapping[str, float]) -> None:
    """Hear of the metrics of a step."""


@hookspec
def on_evaluate(run: Run, metrics: Mapping[str, float]) -> None:
    """Hear of the metrics of an evaluation."""


@hookspec
def on_checkpoint(run: Run, path: Path) -> None:
    """Hear of a checkpoint that is whole and on disk at `path`."""


@hookspec
def on_run_end(run: Run, error: BaseException | None) -> None:
    """Hear that the run is over; `error` is what ended it, None if it ended well."""
