"""The door: every hook a plugin may implement, on one screen.

A plugin is a light module (no torch) named in the entry-point group `rlcore`. Choose one by name: a register hook.
Tell everyone: an observer. Stand around what another builds: `wrap_component`. Per token: none of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from rlcore.components import Component
    from rlcore.protocols import RunView
    from rlcore.settings import TrainConfig
    from rlcore.types import Trajectories

PROJECT = "rlcore"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


def deprecated(hook: str, argument: str = "", *, since: str, goes: str, use: str) -> DeprecationWarning:
    """Make what `warn_on_impl` and `warn_on_impl_args` of a hookspec take; `rlcore list-plugins` shows its text.

    Args:
        hook: the hook that goes, or that loses an argument.
        argument: the argument that goes; nothing where the whole hook does.
        since: version of rlcore from which this is said.
        goes: version of rlcore in which it is gone, two minor versions later.
        use: what takes its place.
    """
    what = f"hook {hook}: argument '{argument}'" if argument else f"hook {hook}"
    return DeprecationWarning(f"{what} is deprecated since rlcore {since} and goes in {goes}: use '{use}'")


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
    """Register algorithms, chosen by `trainer.name`.

    A register hook is called once in every process, the first time a component is looked up there. One that raises
    makes its plugin broken: nothing the plugin registered stays.

    Args:
        register: takes a name and a target, called as `Trainer(config, run)`; see `rlcore.protocols.Trainer`.
    """


@hookspec
def register_pipelines(register: Register) -> None:
    """Register ways to turn text into tokens, chosen by `data.prompt_pipeline` and `data.sample_pipeline`.

    Args:
        register: takes a name and a `rlcore.protocols.PromptPipeline` or `SamplePipeline`; with `config`, a function
            that returns one for an object of that class.
    """


@hookspec
def register_architectures(register: Register) -> None:
    """Register ways to turn a model spec into a policy, chosen by `model.architecture`.

    Args:
        register: takes a name and a `rlcore.protocols.Architecture`, which is given its options as an argument.
    """


@hookspec
def register_rollout_stores(register: Register) -> None:
    """Register places where trajectories wait between sampling and learning, chosen by `store`.

    Args:
        register: takes a name and a target, called as `Store()`, with `config` as `Store(config)`; see
            `rlcore.protocols.RolloutStore`.
    """


@hookspec
def register_loggers(register: Register) -> None:
    """Register places where metrics go, chosen in `loggers`.

    Args:
        register: takes a name and a target, called as `Logger(config, run)` on rank 0; see `rlcore.protocols.Logger`.
    """


@hookspec
def register_samplers(register: Register) -> None:
    """Register ways to generate rollouts, chosen by `sampler`.

    Args:
        register: takes a name and a `rlcore.protocols.Sampler`; with `config`, a function that returns one for an
            object of that class.
    """


@hookspec
def register_rewards(register: Register) -> None:
    """Register reward functions, chosen by name in `data.reward_fn`.

    Args:
        register: takes a name and a function of `samples`, `prompts`, `outputs` or columns of the prompts, by name;
            with `config`, a function that returns one for an object of that class.
    """


@hookspec
def register_optimizers(register: Register) -> None:
    """Register optimizers, chosen by `trainer.optimizer.name`.

    Args:
        register: takes a name and a `torch.optim.Optimizer` class, or what else `rlcore.protocols.OptimizerBuilder`
            allows; with `config`, options that it is given by name.
    """


@hookspec
def register_schedulers(register: Register) -> None:
    """Register courses of the learning rate, chosen by `trainer.optimizer.scheduler`.

    Args:
        register: takes a name and a function from `transformers`, or what else `rlcore.protocols.SchedulerBuilder`
            allows; with `config`, options that it is given by name.
    """


@hookspec
def register_commands(register: Register) -> None:
    """Register subcommands of `rlcore`, such as `rlcore report`.

    `rlcore --help` lists the name and the summary. The target is imported when its command is given, not before. A
    command of the core keeps its name: a plugin's of the same name is a conflict, and runs under its full name
    (`rlcore acme-report:train`).

    Args:
        register: takes a name, which a user types, and a `rlcore.protocols.Command`; `config` must stay None.
    """


@hookspec
def on_run_start(run: RunView) -> None:
    """Hear that a run begins: all is built and, where it goes on from a checkpoint, restored; no step is done yet.

    Observers read, and never change what they are given. They are called on every rank, in no promised order: ask
    `run.ranks.is_main` before writing anything. What they return is ignored. One that raises is reported once and
    called no more in that run, for no hook; with `RLCORE_STRICT_PLUGINS` the run ends with a `PluginError`.

    Args:
        run: the run; `run.config`, `run.dir` and `run.step` (more than 0 where it goes on) say which.
    """


@hookspec
def on_rollout(run: RunView, batch: Trajectories) -> None:
    """Hear of trajectories just sampled and rewarded; the algorithm tells it, if it samples and cares to.

    Args:
        run: the run; `run.step` is still the number of steps done before.
        batch: the sequences as the algorithm will learn from them; which columns it has is the algorithm's.
    """


@hookspec
def on_step(run: RunView, metrics: Mapping[str, float]) -> None:
    """Hear of the metrics of a step, after every yield of the trainer and before an evaluation or checkpoint of it.

    Args:
        run: the run; `run.step` counts this step already.
        metrics: what the trainer yielded on this rank, `time/step_s`, `perf/tokens_per_s` and `perf/peak_memory_gb`.
    """


@hookspec
def on_evaluate(run: RunView, metrics: Mapping[str, float]) -> None:
    """Hear of the metrics of an evaluation, once its completions are written.

    Args:
        run: the run; `run.step` steps have been done, 0 for an evaluation before the first.
        metrics: keys under `eval/`; the same on all ranks.
    """


@hookspec
def on_checkpoint(run: RunView, path: Path) -> None:
    """Hear of a checkpoint that is whole and on disk.

    Args:
        run: the run.
        path: the checkpoint's folder, which later ones may push out: copy what is to stay.
    """


@hookspec
def on_run_end(run: RunView, error: BaseException | None) -> None:
    """Hear that the run is over: the last hook of a run, called however it ended, before loggers are closed.

    Args:
        run: the run; `run.metrics` has the last value of every metric.
        error: what ended it, such as KeyboardInterrupt; None if it ended well or stopped as asked.
    """


@hookspec
def wrap_component(component: Component[Any], config: TrainConfig | None) -> Callable[[Any], Any] | None:
    """Put something around what a component builds: a clock around a sampler, a trace around a policy.

    Asked once a run about each component in use, before anything is built. The first plugin, in registration order
    (the core, then by dist), is innermost. `rlcore show --wrapped` prints who wraps what.

    Args:
        component: its `kind` (such as `samplers`), `name`, `dist` and `version` tell what it is.
        config: the run's configuration; None outside a run, as in `rlcore show --wrapped`.

    Returns:
        None to leave it alone; else a function from what the component built to what is used in its place, which must
        stand in for it fully: every attribute that is read or set. Changing what it was given, and returning that, will
        do. A trainer, policy, store or logger is given as an object; a sampler, pipeline or reward as the function it
        is, whose signature counts (`functools.wraps` keeps it); of an optimizer or scheduler, what builds it.
    """
