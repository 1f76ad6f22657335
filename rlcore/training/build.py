"""Build a run: look up components, check inputs, claim the run's folder, build the trainer, restore a checkpoint.

Also in this file: check the calls of reward and metric functions before a model is loaded, with the first rows and
example answers.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, cast

import attrs

from rlcore.checkpoints.claim import Claim, RunLock, claim
from rlcore.checkpoints.identity import check_identity, explain_missing_plugins, record_processes, versions_of
from rlcore.checkpoints.run_folder import RunDir
from rlcore.checkpoints.state import seed_dropout, seed_everything
from rlcore.components import LANGUAGE_MODEL, SCORER, Component
from rlcore.config import Problems, evolve, unstructure
from rlcore.data.user_code import parameters_of
from rlcore.errors import ConfigError, InputsError, RewardError
from rlcore.loggers import Loggers
from rlcore.logging import get_logger
from rlcore.optim.optimization import Optimizers
from rlcore.plugins.choice import Choice, Chooser, Wrapping
from rlcore.plugins.observers import Observers, find_uploader, idle_providers
from rlcore.plugins.registry import all_registries, registries, services
from rlcore.protocols import ArchitectureTraits, PreviewPipeline, RewardTraits, SamplerTraits, Trainer, TrainerTraits
from rlcore.ranks import Ranks, check_processes
from rlcore.rewards.call_inputs import CallInputs, UserFunction
from rlcore.rewards.chosen_rewards import resolve
from rlcore.rewards.combine import Rewards
from rlcore.rewards.values import Call, read_metrics, read_rewards
from rlcore.safe_text import shorten
from rlcore.settings import TrainConfig
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
from rlcore.types import Prompt

log = get_logger("check_functions")

ANSWERS = ("This is an example answer.", "This is another one: 42.")
"""The outputs that functions receive."""
_PLAIN = type(None), bool, int, float, complex, str, bytes, frozenset, type, types.BuiltinFunctionType
_PURE = (
    "ast", "collections", "difflib", "functools", "itertools", "json", "math", "numpy", "operator", "re", "statistics",
    "string", "torch", "typing",
)  # fmt: skip
"""Modules whose functions change nothing outside; others may write, send or signal."""


def check_functions(settings: TrainConfig, inputs: Inputs, chosen: Chosen) -> None:
    """Check the signature of each function against the columns, and call those that keep no state with two rows.

    Checked are functions of the user's own, for prompts of which the pipeline has a preview. They are called if
    `run.check_functions` is set and they can be called once more without a change to the run: functions that neither
    change nor read an object that may keep state (a list, an instance), and that need no tokenizer.

    Raises:
        RewardError: a function requires an argument that does not exist, or returned an invalid value. One that raises
            is a warning: it may need a larger batch, or outputs of a form that the policy keeps.
        DataError: a file of prompts cannot be read, or a function cannot be found.
    """
    if ArchitectureTraits(chosen.architecture.component.target()).kind not in (LANGUAGE_MODEL, SCORER):
        return  # outputs that are no text
    if inputs.environment is not None:
        return  # functions may take arguments that only an episode has
    pipeline = chosen.prompts.unwrapped() if chosen.rewards or inputs.metric_fn is not None else None
    if not isinstance(pipeline, PreviewPipeline):
        return
    timeout_s = settings.run.reward_timeout_s
    rewards = [each for each in chosen.rewards if each.choice is None]
    functions = [UserFunction("reward", each.name, each.load(), each.weight, timeout_s) for each in rewards]
    metrics = []
    if inputs.metric_fn is not None:
        name, load = resolve(inputs.metric_fn, "metric_fn")
        metrics = [UserFunction("metric", name, load(), timeout_s=timeout_s)]
    evaluated = settings.eval.every or settings.eval.at_start or settings.eval.at_end
    first = "samples" if TrainerTraits(chosen.trainer.component.target()).scores_samples else "prompts"
    for what in (first, "eval_prompts") if evaluated else (first,):
        source = getattr(inputs, what)
        rows = pipeline.preview(source, settings.data, what=f"data.{what}") if functions or metrics else None
        evaluates = what == "eval_prompts" or (inputs.eval_prompts is None and what == "prompts")
        for function in [*functions, *(metrics if evaluates else ())]:
            if rows is not None:
                _check_function(function, rows, what, is_called=settings.run.check_functions)


def _check_function(function: UserFunction, rows: tuple[list[Prompt], bool], what: str, *, is_called: bool) -> None:
    prompts, is_text = rows
    outputs = list(ANSWERS[: len(prompts)])
    tokens = [[0] * len(output.split()) for output in outputs]
    where = f"before the run, with {what}"
    inputs = CallInputs.of(prompts, outputs, None, where, output_tokens=tokens)
    inputs.arguments_of(function)
    unknown = ["tokenizer", *(() if is_text else ("samples", "prompts"))]
    if not (is_called and keeps_no_state(function.call)) or _names(function.call, unknown):
        return
    try:
        (result,) = Call.of([function], inputs).wait()
        if function.kind == "reward":
            read_rewards(result, function, inputs, inputs.num_actions)
        else:
            read_metrics(result, function, inputs)
    except RewardError as error:
        args, named = inputs.arguments_of(function)
        shown = [shorten(each, 80) for each in args] + [f"{key}={shorten(each, 80)}" for key, each in named.items()]
        text = (
            f"{error}\n  called as {function.name}({', '.join(shown)})\n  The outputs are placeholders; the columns "
            "are those of the first rows. This call comes before the model is loaded, since such an output would end "
            "the run later; run.check_functions=false leaves it out"
        )
        if error.__cause__ is None:
            raise RewardError(text) from None
        log.warning(text)  # the function may be right for a batch of another size, and for what the policy writes


def keeps_no_state(function: object) -> bool:
    """Return whether a call changes nothing that a later call depends on, as far as the function's code shows.

    It is true for a plain function that assigns to nothing outside, and that refers only to constants, modules, classes
    and other such functions. Objects with methods, lists and iterators may keep state, and count as doing so.
    """
    return _is_plain(function, set())


def _is_plain(value: object, seen: set[int]) -> bool:
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _PURE
    if isinstance(value, _PLAIN) or id(value) in seen:
        return True
    seen.add(id(value))
    if isinstance(value, tuple):
        return all(_is_plain(part, seen) for part in value)
    if isinstance(value, functools.partial):
        return all(_is_plain(part, seen) for part in (value.func, *value.args, *value.keywords.values()))
    if not isinstance(value, types.FunctionType):
        return type(value).__module__ in ("re", "pathlib", "typing")
    if {"open", "input", "exec", "eval"} & {*value.__code__.co_names}:
        return False
    return _assigns_nothing(value) and all(_is_plain(each, seen) for each in _referenced(value))


def _assigns_nothing(function: types.FunctionType) -> bool:
    outside = set(function.__code__.co_freevars)
    return not any(
        step.opname in ("STORE_GLOBAL", "STORE_ATTR", "DELETE_GLOBAL")
        or (step.opname == "STORE_DEREF" and step.argval in outside)
        for code in _codes(function.__code__)
        for step in dis.get_instructions(code)
    )


def _referenced(function: types.FunctionType) -> Iterator[object]:
    """Yield the values from outside that a function refers to: globals, those of enclosing functions, defaults.

    Globals of rlcore's packages, which adapt functions of other libraries, change no result.
    """
    for code in () if str(function.__module__).startswith("rlcore") else _codes(function.__code__):
        yield from (function.__globals__[name] for name in code.co_names if name in function.__globals__)
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # it is empty
            yield cell.cell_contents
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(function: Callable[..., object], arguments: Sequence[str]) -> bool:
    """Return whether a function takes one of the arguments, by name, by position, or from its `**` parameter."""
    parameters = list((parameters_of(function) or {}).values())
    if any(each.name in arguments for each in parameters):
        return True
    known = {"outputs", "messages", "completions", "completion_ids", "output_tokens"}
    first = parameters[0] if parameters else None
    if (
        "samples" in arguments
        and first is not None
        and (first.kind is first.POSITIONAL_ONLY or (first.default is first.empty and first.name not in known))
    ):
        return first.kind is not first.VAR_KEYWORD
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None)
    return code is not None and any(name in each.co_consts for each in _codes(code) for name in arguments)


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
    keeper = services().processes(None)
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
        name, headline = chosen.trainer.component.name, tuple(TrainerTraits(trainer_type).headline)
        place = undo_claim.enter_context(claim(settings, ranks, plugins, name, _notes(inputs.objects, headline)))
        seed_everything(settings.run.seed)
        closing = Closing(observers, Progress(total_steps=settings.run.steps))
        close_components.callback(closing.held.close)
        run = _build_run(settings, inputs, chosen, optimizers, ranks, place, observers, closing, headline=headline)
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


def _check_needs(component: Component[object], inputs: Inputs) -> None:
    trainer_type: Any = component.target()
    check_declared(component, trainer_type)
    name = component.name
    uses = "reward_fn" if TrainerTraits(trainer_type).scores_samples else ""
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
    closing: Closing,
    *,
    headline: Sequence[str],
) -> Run:
    def make_rewards() -> Rewards:
        rewards = Rewards.load(chosen.rewards, timeout_s=config.run.reward_timeout_s)
        for reward, function in zip(chosen.rewards, rewards.functions, strict=True):
            if reward.choice is not None:  # a function of the user's own is not the run's to close
                closing.hold(RewardTraits(function.call).close, reward.choice.component.qualified)
                RewardTraits(function.call).open(cast("Run", weak_run()))
        return rewards

    progress, models = closing.progress, Models(chosen.architecture, inputs, place, ranks)
    build_prompts, turns = chosen.prompts.build(), chosen.sampler.build()
    closing.hold(SamplerTraits(turns).close, chosen.sampler.component.qualified)
    sampler = turns
    if inputs.environment is not None:
        player = open_player(chosen.environment, inputs, config)
        closing.hold(player.close, "data.environment")
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
    weak_run = weakref.ref(run)  # the run holds `make_rewards`: a cycle would keep the model after the run is dropped
    SamplerTraits(turns).open(run)
    if sampler is not turns:
        SamplerTraits(sampler).open(run)
    observers.add(chosen.sampler.component.qualified, turns)
    return run


def _with_defaults(settings: TrainConfig, trainer_type: Any, *, holds_out_samples: bool) -> TrainConfig:
    run, beta, keep = settings.run, settings.gen.beta, settings.checkpoint
    if keep.metric is None and holds_out_samples:
        named = (name for name in TrainerTraits(trainer_type).headline if name.startswith("eval/"))
        keep = evolve(keep, metric=next(named, None))
    metric, mode = ranking(keep)
    keep = evolve(keep, metric=metric, mode=mode)
    if run.steps is None and run.epochs is None and run.time_s is None:
        run = evolve(run, **trainer_type.default_budget)
    beta = TrainerTraits(trainer_type).default_beta if beta is None else beta
    return evolve(settings, run=run, gen=evolve(settings.gen, beta=beta), checkpoint=keep)


def _resolve(settings: TrainConfig, inputs: Inputs, chosen: Chosen) -> TrainConfig:
    """Return the configuration as config.yaml shows it, with every default filled in."""
    pipelines = {"prompt_pipeline": chosen.prompts, "sample_pipeline": chosen.samples}
    shown: dict[str, object] = {
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
