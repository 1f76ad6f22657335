"""Build a run: look up components, check inputs, claim the run's folder, build the trainer, restore a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, cast

import attrs

from rlcore.checkpoints.claim import Claim, RunLock, claim
from rlcore.checkpoints.identity import check_identity, explain_missing_plugins, record_processes, versions_of
from rlcore.checkpoints.run_folder import RunDir
from rlcore.checkpoints.state import seed_dropout, seed_everything
from rlcore.components import Component
from rlcore.config import Problems, evolve, unstructure
from rlcore.errors import ConfigError, InputsError
from rlcore.loggers import Loggers
from rlcore.optim.optimization import Optimizers
from rlcore.plugins.choice import Choice, Chooser, Wrapping
from rlcore.plugins.observers import Observers, find_uploader, first_result, idle_providers
from rlcore.plugins.registry import all_registries, registries
from rlcore.protocols import Trainer
from rlcore.ranks import Ranks, check_processes
from rlcore.rewards.combine import Rewards
from rlcore.settings import TrainConfig
from rlcore.training.check_functions import check_functions
from rlcore.training.consensus import (
    agree_on_configuration,
    agree_on_identity,
    agree_on_plugins,
    agree_on_weights,
    draws_by_rank,
    identify,
)
from rlcore.training.evaluate import check_evaluation, eval_samplings, ranking
from rlcore.training.inputs import DATA_INPUTS, Inputs, describe_input
from rlcore.training.models import Models
from rlcore.training.progress import Closing, Progress
from rlcore.training.resume import Saver
from rlcore.training.run import Run
from rlcore.training.run_components import (
    Chosen,
    check_built,
    check_declared,
    choose,
    open_player,
    other_trainer,
    with_rows,
)
from rlcore.training.run_data import RunData
from rlcore.training.run_sampling import Sampling


@attrs.frozen(eq=False)
class Assembly:
    """The parts of a run that is ready to start.

    Attributes:
        trainer: the trainer.
        run: the run.
        saver: writes checkpoints.
        lock: on the run's folder, to be released at the end of the run; None on other ranks.
    """

    trainer: Trainer
    run: Run
    saver: Saver
    lock: RunLock | None


def assemble(settings: TrainConfig, inputs: Inputs, where: str, problems: Problems | None = None) -> Assembly:
    """Build a run from settings and the user's inputs.

    No file is written before every name and option has been checked.

    Args:
        settings: the configuration.
        inputs: the user's model, data and functions.
        where: name of the configuration, for errors.
        problems: errors of the configuration so far, which are raised together with those found here.

    Raises:
        RLCoreError: a name, option or input cannot be used, the run's folder is in use, or a checkpoint is damaged.
    """
    keeper = first_result("find_processes", cluster=None)
    if keeper is not None:
        keeper.accept_launch(settings)
    ranks = Ranks(settings.run.mixed_precision, timeout_s=settings.run.timeout_s)
    if keeper is not None and ranks.world > 1:
        ranks.watch(keeper.watch(ranks.rank, ranks.world, settings.run.timeout_s))
    check_processes(settings.run.processes, ranks.world, settings.run.cluster)
    agree_on_plugins(ranks, all_registries().discovery)  # before any name is looked up, which one rank might not find
    with explain_missing_plugins(settings.run), ranks.translated():
        return _assemble(settings, inputs, where, ranks, problems or Problems())


def _assemble(settings: TrainConfig, inputs: Inputs, where: str, ranks: Ranks, problems: Problems) -> Assembly:
    idle = idle_providers({f"run.{name}": getattr(settings.run, name) for name in ("profile", "asynchronous")}, where)
    observers = Observers(idle=idle, own=inputs.observers)
    wrapping = Wrapping(fence=observers.fence, config=settings)
    chosen, optimizers = _check(settings, inputs, where, wrapping, problems)
    ranks.on_main(lambda: check_functions(settings, inputs, chosen))
    plugins = chosen.plugins | optimizers.plugins | versions_of(observers.plugins | wrapping.plugins)
    trainer_type: Any = chosen.trainer.component.target()
    settings = _with_defaults(settings, trainer_type, holds_out_samples=inputs.eval_samples is not None)
    settings = _resolve(settings, inputs, chosen)
    agree_on_configuration(ranks, settings)
    agree_on_weights(ranks, inputs.model)
    with ExitStack() as undo_claim, ExitStack() as close_components:
        name, headline = chosen.trainer.component.name, tuple(getattr(trainer_type, "headline", ()))
        place = undo_claim.enter_context(claim(settings, ranks, plugins, name, _notes(inputs.objects, headline)))
        seed_everything(settings.run.seed)
        run = _build_run(settings, inputs, chosen, optimizers, ranks, place, observers, headline)
        close_components.callback(run.closing.held.close)
        trainer: Trainer = chosen.trainer.wrap(trainer_type(chosen.trainer.options, run))
        check_built(chosen.trainer.component, trainer)
        observers.add(chosen.architecture.component.qualified, run.models.built)
        seed_dropout(settings.run.seed, ranks.rank)
        if settings.run.epochs is not None and run.total_steps is None:
            raise ConfigError(f"run.epochs: trainer '{name}' does not count epochs; set run.steps")
        check_evaluation(run)
        _ = run.data.sample_rewards  # checked even if the trainer does not use them
        identity = identify(run, chosen)
        agree_on_identity(ranks, identity)
        saver = Saver(run, plugins, ranks.on_main(lambda: _compare(identity, run, place, plugins)))
        if place.checkpoint is not None:
            saver.restore(trainer, place.checkpoint)
        ranks.on_main(lambda: _open_loggers(run, chosen, inputs, is_resumed=place.checkpoint is not None))
        close_components.pop_all()  # from here on the loop closes what the run holds
        run.closing.claimed = undo_claim.pop_all()  # until the first step is done
        return Assembly(trainer, run, saver, place.lock)


def _notes(objects: Sequence[str], headline: Sequence[str]) -> list[str]:
    """Return the comments of config.yaml: what a program passed beside the options, and the trainer's main metrics."""
    passed = [f"passed from Python, and to be passed again: {name}" for name in objects]
    return [*passed, f"headline {' '.join(headline)}"] if headline else passed


def _check(
    settings: TrainConfig, inputs: Inputs, where: str, wrapping: Wrapping, problems: Problems
) -> tuple[Chosen, Optimizers]:
    """Choose the components and check every option and input; the errors of all sections are raised together."""
    chosen = choose(settings, inputs, where, wrapping, problems)
    trainer = cast("Choice | None", chosen.trainer)  # None after an error
    optimizers = problems.attempt(Optimizers, trainer and trainer.options, Chooser(where, wrapping, problems))
    problems.attempt(list, eval_samplings(settings.gen, settings.eval.gen))  # each raises what is wrong with it
    if (repo := settings.run.push_to_hub) is not None:
        problems.attempt(lambda: find_uploader(repo, where).check(repo, where))
    if trainer is not None:
        problems.attempt(_check_needs, trainer.component, inputs)
    problems.check()
    return chosen, optimizers


def _check_needs(component: Component[Any], inputs: Inputs) -> None:
    trainer_type: Any = component.target()
    check_declared(component, trainer_type)
    name = component.name
    uses = "reward_fn" if getattr(trainer_type, "scores_samples", False) else ""
    inputs.require(
        name, trainer_type.needs, uses=uses, other=lambda: other_trainer(inputs.given, registries().trainers, than=name)
    )


def _compare(identity: dict[str, Any], run: Run, place: Claim, plugins: dict[str, str]) -> dict[str, Any]:
    """Compare the identity of the run with that of the checkpoint, and return the fields that record it."""
    record = check_identity(identity, place.checkpoint, accept=run.config.run.accept_changes, plugins=plugins)
    return record | record_processes(place.checkpoint, run.ranks.world, is_exact=not draws_by_rank(run))


def _open_loggers(run: Run, chosen: Chosen, inputs: Inputs, *, is_resumed: bool) -> None:
    RunDir(run.dir).rewind(run.step if is_resumed else None)
    for choice in chosen.loggers:
        logger = choice.wrap(choice.component.target()(choice.options, run))
        run.loggers.add(logger, choice.component.qualified)
    for name, logger in inputs.loggers.items():
        run.loggers.add(logger, name)
    run.loggers.add(run.sampling.rollouts, "rlcore:rollouts")


def _build_run(
    config: TrainConfig,
    inputs: Inputs,
    chosen: Chosen,
    optimizers: Optimizers,
    ranks: Ranks,
    place: Claim,
    observers: Observers,
    headline: Sequence[str],
) -> Run:
    def make_rewards() -> Rewards:
        rewards = Rewards.load(chosen.rewards, timeout_s=config.run.reward_timeout_s)
        for reward, function in zip(chosen.rewards, rewards.functions, strict=True):
            if reward.choice is not None:  # a function of the user's own is not the run's to close
                closing.hold(function.call, reward.choice.component.qualified)
                begin(function.call)
        return rewards

    def begin(built: Any) -> None:
        if callable(begun := getattr(built, "open", None)):
            begun(run)

    progress, models = Progress(total_steps=config.run.steps), Models(chosen.architecture, inputs, place, ranks)
    closing = Closing(observers, progress)
    build_prompts, turns = chosen.prompts.build(), chosen.sampler.build()
    closing.hold(turns, chosen.sampler.component.qualified)
    sampler = turns
    if inputs.environment is not None:
        player = open_player(chosen.environment, inputs, config)
        closing.hold(player, "data.environment")
        inputs = with_rows(inputs, player)
        build_prompts, sampler = player.pipeline(build_prompts), player.sampler(sampler)
    data = RunData(
        config=config, inputs=inputs, models=models, build_prompts=build_prompts,
        build_samples=chosen.samples.build(), make_rewards=make_rewards,
    )  # fmt: skip
    sampling = Sampling(
        config=config, dir=place.path, ranks=ranks, models=models, data=data, sampler=sampler,
        progress=progress,
    )  # fmt: skip
    run = Run(
        config=config, dir=place.path, ranks=ranks, models=models, data=data, sampling=sampling, progress=progress,
        closing=closing, observers=observers, loggers=Loggers(fence=observers.fence), headline=headline,
        make_store=chosen.store.factory(), optimizers=optimizers,
        make_sharding=lambda: chosen.sharding.wrap(chosen.sharding.component.target())(config.run, ranks),
    )  # fmt: skip
    begin(turns)
    observers.add(chosen.sampler.component.qualified, turns)
    return run


def _with_defaults(settings: TrainConfig, trainer_type: Any, *, holds_out_samples: bool) -> TrainConfig:
    run, beta, keep = settings.run, settings.gen.beta, settings.checkpoint
    if keep.metric is None and holds_out_samples:
        named = (name for name in getattr(trainer_type, "headline", ()) if name.startswith("eval/"))
        keep = evolve(keep, metric=next(named, None))
    metric, mode = ranking(keep)
    keep = evolve(keep, metric=metric, mode=mode)
    if run.steps is None and run.epochs is None and run.time_s is None:
        run = evolve(run, **trainer_type.default_budget)
    beta = getattr(trainer_type, "default_beta", 0.0) if beta is None else beta
    return evolve(settings, run=run, gen=evolve(settings.gen, beta=beta), checkpoint=keep)


def _resolve(settings: TrainConfig, inputs: Inputs, chosen: Chosen) -> TrainConfig:
    """Return the configuration as config.yaml shows it, with every default filled in."""
    pipelines = {"prompt_pipeline": chosen.prompts, "sample_pipeline": chosen.samples}
    shown: dict[str, Any] = {
        name: getattr(settings.data, name) or choice.component.name for name, choice in pipelines.items()
    }
    for name in DATA_INPUTS:
        given = getattr(inputs, name)
        try:
            shown[name] = describe_input(given, whole=given is getattr(settings.data, name))
        except RecursionError:
            raise InputsError(f"data.{name}: a row is nested too deep, or contains itself") from None
    tokenizer = {} if inputs.tokenizer is None else {"tokenizer": describe_input(inputs.tokenizer)}
    model = {"path": describe_input(inputs.model), **tokenizer, "architecture": chosen.architecture.component.name}
    name = settings.trainer.get("name") or chosen.trainer.component.name
    return evolve(
        settings,
        trainer={"name": name, **(unstructure(chosen.trainer.options) or {})},
        model=model | (unstructure(chosen.architecture.options) or {}),
        data=evolve(settings.data, **shown),
    )
