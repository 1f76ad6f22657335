"""Every hook that a plugin may implement.

A plugin is a module that imports no torch and is named in the entry-point group `rlcore`. A `register_*` hook adds
components that users choose by name, `register_services` what the core uses without a name, an `on_*` hook observes a
run, and `wrap_component` wraps what another component builds. No hook is called per token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs
import pluggy

if TYPE_CHECKING:
    import inspect

    from rlcore.components import Component
    from rlcore.protocols import Decoder, DecoderRequest, EpisodePlayer, ParallelFiles, Processes, RunView, Uploader
    from rlcore.protocols.learners import Learner
    from rlcore.settings import OptimizerConfig, TrainConfig
    from rlcore.types import Options, Trajectories

PROJECT = "rlcore"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


def deprecated(hook: str, argument: str = "", *, since: str, goes: str, use: str) -> DeprecationWarning:
    """Return the warning to pass to `hookspec` as `warn_on_impl` or in `warn_on_impl_args`.

    `rlcore list-plugins` shows its text next to the plugins that implement the hook or take the argument.

    Args:
        hook: the deprecated hook, or the hook with the deprecated argument.
        argument: the deprecated argument; empty if the whole hook is deprecated.
        since: version of rlcore that deprecates it.
        goes: version of rlcore that removes it, two minor versions later.
        use: its replacement.
    """
    what = f"hook {hook}: argument '{argument}'" if argument else f"hook {hook}"
    return DeprecationWarning(f"{what} is deprecated since rlcore {since} and will be removed in {goes}: use '{use}'")


class Register(Protocol):
    """The callback that a register hook receives; the hook calls it once per component."""

    def __call__(
        self,
        name: str,
        target: Any,
        *,
        config: Any = None,
        summary: str = "",
        fits: Any = None,
        sections: Options | None = None,
    ) -> None:
        """Register a component.

        What a run calls depends on the kind. A trainer or logger is called as `target(config, run)`, with None for
        `config` if it has no options. A store is called as `target()`, or `target(config)` if it has options. Samplers,
        pipelines, rewards and environments are used as they are, or, if they have options, `target(config)` returns
        what is used. Architectures, optimizers, schedules, shardings and commands have protocols of their own.

        Args:
            name: the short name that users write in a configuration; its full name is `dist:name`.
            target: the component, or its `"module:attribute"`, which is imported on first use.
            config: the component's `@rlcore.config.config` class, or its `"module:attribute"`; None if it has no
                options.
            summary: one line for `rlcore show`.
            fits: of an architecture, a function `(spec, revision)`, or its `"module:attribute"`, that returns 3 if the
                architecture is made for the model, 2 if it takes models of this kind, 1 if it takes any model, and 0 if
                it does not take it. Where no architecture is named, the one with the highest number is chosen, of
                several the first by name.
            sections: of an architecture, the class of the options of each mapping in the section `model`, such as
                `tokenizer`, by name, for `rlcore show`.
        """
        ...


def no_result(*_: object) -> None:
    """Return None: a service that no plugin offers."""


@attrs.frozen(kw_only=True)
class Services:
    """What plugins do for the core without being selected by name: functions, which are called by position.

    A function returns None to leave the work to the next plugin; the first other result is used.

    Attributes:
        uploader: returns what uploads trained models, for `run.push_to_hub` and `result.push_to_hub`.
        parallel_files: returns what writes and reads checkpoints whose tensors all processes write in parallel, for
            `checkpoint.format=dcp`.
        processes: returns what starts and watches the processes of a run. Its argument is `run.cluster`, or None in the
            run itself, which calls it once.
        episode_player: returns what plays the episodes of a run with `data.environment`, before the model is built,
            from the environment (what a plugin registered, built with its options, or what the user passed) and the
            run's configuration, whose `data.episodes` are the options of the episodes.
        decoder: returns a decoder of a batch of prompts that is faster than that of the architecture `causal_lm`. The
            decoder must compute what the model does, up to rounding, so that sampled tokens do not depend on the
            installed plugins.
        learning_rate: returns the learning rate of a model whose run sets none (`trainer.optimizer.lr: null`), from the
            optimizer's options, whose `published` is a learning rate and the number of parameters of its model. Called
            on every rank, before processes divide the model; the result must be the same on all ranks.
        observer: returns an object with observer hooks as methods, for an object of another library in
            `rlcore.train(observers=[...])`, such as a callback of another trainer.
        reward_arguments: returns the arguments of a reward or metric function that is written for another library, for
            each call. It receives the parameters of the function's signature, without those that `functools.partial`
            has bound, and the arguments that a function of a run may take, by name.
    """

    uploader: Callable[[], Uploader | None] = no_result
    parallel_files: Callable[[], ParallelFiles | None] = no_result
    processes: Callable[[Any], Processes | None] = no_result
    episode_player: Callable[[Any, TrainConfig], EpisodePlayer | None] = no_result
    decoder: Callable[[DecoderRequest], Decoder | None] = no_result
    learning_rate: Callable[[OptimizerConfig, Learner], float | None] = no_result
    observer: Callable[[Any], object | None] = no_result
    reward_arguments: Callable[[Sequence[inspect.Parameter], Mapping[str, Any]], Mapping[str, Any] | None] = no_result


Order = Literal["first", "", "last"]
NO_SERVICES = Services()


class RegisterServices(Protocol):
    """The callback that `register_services` receives; the hook may call it several times."""

    def __call__(self, services: Services = NO_SERVICES, *, options: Sequence[str] = (), order: Order = "") -> None:
        """Register services.

        Args:
            services: the plugin's functions.
            options: dotted paths of options of the core that the plugin implements, such as `run.profile`, for which a
                run is refused if no loaded plugin names them. In a run that leaves `run.profile` or `run.asynchronous`
                unset, observers of a plugin that names it are not called.
            order: "first" if these functions are called before those of other plugins, "last" if after them, so that
                another package's take precedence, as those of the default packages do. Within one order, the plugin
                that was registered last is called first; of those that are "last", it is called last.
        """
        ...


@hookspec
def register_trainers(register: Register) -> None:
    """Register algorithms, selected by `trainer.name`.

    A register hook is called once per process, before the first component is looked up. If it raises, the plugin is
    reported as broken and all of its components are discarded.

    Args:
        register: takes a name and a target that is called as `Trainer(config, run)`; see `rlcore.protocols.Trainer`.
    """


@hookspec
def register_pipelines(register: Register) -> None:
    """Register tokenisation pipelines, selected by `data.prompt_pipeline` and `data.sample_pipeline`.

    Args:
        register: takes a name and a `rlcore.protocols.PromptPipeline` or `SamplePipeline`; with `config`, a function
            that takes an object of that class and returns the pipeline.
    """


@hookspec
def register_architectures(register: Register) -> None:
    """Register functions that build a policy from a model spec, selected by `model.architecture`.

    Args:
        register: takes a name and a `rlcore.protocols.Architecture`, which receives its options as an argument. With
            `fits`, it can also be chosen in runs that name no architecture.
    """


@hookspec
def register_rollout_stores(register: Register) -> None:
    """Register rollout stores, which hold trajectories between sampling and training; selected by `store`.

    Args:
        register: takes a name and a target that is called as `Store()`, or with `config` as `Store(config)`; see
            `rlcore.protocols.RolloutStore`.
    """


@hookspec
def register_loggers(register: Register) -> None:
    """Register loggers of metrics and completions, selected in `loggers`.

    Args:
        register: takes a name and a target that is called as `Logger(config, run)` on rank 0; see
            `rlcore.protocols.Logger`.
    """


@hookspec
def register_samplers(register: Register) -> None:
    """Register samplers, which generate rollouts; selected by `sampler`.

    Args:
        register: takes a name and a `rlcore.protocols.Sampler`; with `config`, a function that takes an object of that
            class and returns the sampler.
    """


@hookspec
def register_rewards(register: Register) -> None:
    """Register reward functions, selected by name in `data.reward_fn`.

    Args:
        register: takes a name and a reward function, whose parameters are any of `samples`, `prompts`, `outputs` and
            the prompts' columns, passed by name; with `config`, a function that takes an object of that class and
            returns the reward function. An optional method `open(run)` of the reward function is called once, before
            the first call in a run, with a `rlcore.protocols.RunView`; an error in it ends the run. An optional method
            `close()` is called once at the end of the run, to end processes or free memory; called again after it, the
            function starts anew. If a
            user passes a model of `transformers`, or its folder, in place of a function, the reward called
            `reward_model` is used, with it as the option `path`.
    """


@hookspec
def register_optimizers(register: Register) -> None:
    """Register optimizers, selected by `trainer.optimizer.name`.

    Args:
        register: takes a name and a `torch.optim.Optimizer` class or other `rlcore.protocols.OptimizerBuilder`; with
            `config`, the options of that class are passed to it by name.
    """


@hookspec
def register_schedulers(register: Register) -> None:
    """Register learning-rate schedules, selected by `trainer.optimizer.scheduler`.

    Args:
        register: takes a name and a schedule function of `transformers` or other `rlcore.protocols.SchedulerBuilder`;
            with `config`, the options of that class are passed to it by name.
    """


@hookspec
def register_shardings(register: Register) -> None:
    """Register strategies that divide a model among processes, selected by `run.shard`.

    Args:
        register: takes a name and a function that is called as `build(config, ranks)`, with the section `run` of the
            configuration and this process's place among the others, and returns a `rlcore.protocols.Sharding`.
    """


@hookspec
def register_environments(register: Register) -> None:
    """Register environments, with which a policy talks in episodes of several turns; selected by `data.environment`.

    Args:
        register: takes a name and a class of `rlcore.protocols.Environment`, or a
            `rlcore.protocols.EnvironmentFactory`; with `config`, a function that takes an object of that class and
            returns one of these.
    """


@hookspec
def register_commands(register: Register) -> None:
    """Register subcommands of `rlcore`, such as `rlcore report`.

    `rlcore --commands` lists the name and the summary; the target is imported only when the command runs. Commands of
    the core take precedence: a plugin's command of the same name is reported as a conflict and runs under its full name
    (`rlcore acme-report:train`).

    Args:
        register: takes the command's name and a `rlcore.protocols.Command`; `config` must be None.
    """


@hookspec
def register_services(register: RegisterServices) -> None:
    """Register what the core uses without a name: an uploader, a faster decoder, learning rates and the like.

    If a function raises an error that is not an `RLCoreError`, the run ends with a `PluginError` that names the plugin.

    Args:
        register: takes `rlcore.hookspecs.Services`.
    """


@hookspec
def on_run_start(run: RunView) -> None:
    """Called once before the first step, after the model is built and any checkpoint is restored.

    Observers read their arguments and must not change them; `run.request_stop` ends the run. They are called on every
    rank in an unspecified order, so check `run.ranks.is_main` before writing files. Return values are ignored. If an
    observer raises, the error is logged once and no hook of that plugin is called again in the run; with
    `RLCORE_STRICT_PLUGINS` set, the run ends with a `PluginError`.

    Args:
        run: the run, with `run.config`, `run.dir` and `run.step` (greater than 0 after a resume).
    """


@hookspec
def on_rollout(run: RunView, batch: Trajectories) -> None:
    """Called after trajectories are sampled and rewarded, by algorithms that report their rollouts.

    Args:
        run: the run; `run.step` does not count the current step yet.
        batch: the sequences of this rank that the algorithm will train on; the columns depend on the algorithm.
    """


@hookspec
def on_step(run: RunView, metrics: Mapping[str, float]) -> None:
    """Called after every step (yield of the trainer), before the step's evaluation or checkpoint.

    Args:
        run: the run; `run.step` counts this step.
        metrics: what the trainer yielded on this rank, plus `time/step_s`, `perf/tokens_per_s` and
            `perf/peak_memory_gb`.
    """


@hookspec
def on_evaluate(run: RunView, metrics: Mapping[str, float]) -> None:
    """Called after every evaluation, when its completions have been written.

    Args:
        run: the run; `run.step` is 0 for an evaluation before the first step.
        metrics: metrics named `eval/...`, equal on all ranks.
    """


@hookspec
def on_checkpoint(run: RunView, path: Path) -> None:
    """Called after every checkpoint, when it is complete on disk.

    Args:
        run: the run.
        path: the checkpoint's folder, which the run may delete after later checkpoints: copy what you want to keep. Do
            not write weights into it, because a run resumes only from a folder whose weights its manifest lists.
    """


@hookspec
def on_export(run: RunView, folder: Path) -> None:
    """Called on rank 0 when a trained model has been written to a folder, before a manifest lists the folder's files.

    At the end of the run, this is `model/` in the run's folder; `result.save_pretrained` calls the hook too.

    Args:
        run: the run.
        folder: the model's folder, to which files may be added, such as a model card.
    """


@hookspec
def on_run_end(run: RunView, error: BaseException | None) -> None:
    """Called once when the run ends, whether or not it failed, before loggers are closed.

    Args:
        run: the run; `run.metrics` has the last value of every metric.
        error: the exception that ended the run, such as KeyboardInterrupt; None if it finished or was stopped by a
            signal.
    """


@hookspec
def on_run_closed(run: RunView, error: BaseException | None) -> None:
    """Called last, when samplers, rewards and loggers are closed and the files of the run are complete.

    Args:
        run: the run; files that are written into `run.dir` are not part of its checkpoints.
        error: as in `on_run_end`.
    """


@hookspec
def wrap_component(component: Component[Any], config: TrainConfig | None) -> Callable[[Any], Any] | None:
    """Return a function that wraps what a component builds, such as a sampler that is to be timed, or None.

    Called once per run for each component in use, before anything is built. The wrapper of the first plugin in
    registration order (the core, then by dist) is innermost. `rlcore show --wrapped` lists the wrappers.

    Args:
        component: the component, with its `kind` (such as `samplers`), `name`, `dist` and `version`.
        config: the run's configuration; None outside a run, as in `rlcore show --wrapped`.

    Returns:
        None to leave the component alone; otherwise a function that takes what the component built and returns its
        replacement. The replacement must have every attribute that is read or set on the original and the same
        signature; changing the original in place and returning it is fine. The function receives an object for a
        trainer, policy, store or logger, the callable itself for a sampler, pipeline or reward (`functools.wraps` keeps
        its signature), and the builder for an optimizer, schedule or sharding.
    """
