"""Optimizers and learning-rate schedules named in a trainer's options: look them up, check their options, build them.

A builder is called with the keyword arguments in its signature, so that classes of torch and functions of
`transformers` can be registered unchanged; see `rlcore.protocols`.

Also in this file: advance a learning-rate schedule by the progress of a run, whatever number of optimizer steps the
run makes; restores an optimizer with the options of the present configuration, also where the saved one had others.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rlcore.components import BESIDE_OPTIONS, COMMON_OPTIONS, TOTAL, WARMUP
from rlcore.config import evolve, unstructure
from rlcore.data import user_code
from rlcore.errors import CheckpointError, ConfigError, PluginError
from rlcore.plugins.choice import Choice, Chooser, Wrapping, check_keys
from rlcore.plugins.registry import registries, services
from rlcore.protocols import Learner
from rlcore.settings import OptimizerConfig
from rlcore.types import State

_TRIAL_UPDATES, _TRIAL_RATE = 10**9, 1e-3


@attrs.frozen(eq=False)
class Optimization:
    """The optimizer and the schedule named by one `OptimizerConfig`, with checked options.

    Attributes:
        config: the section of the trainer's options.
        optimizer: the optimizer and its options.
        scheduler: the learning-rate schedule and its options.
        where: file and dotted path of the section, for errors.
    """

    config: OptimizerConfig
    optimizer: Choice
    scheduler: Choice
    where: str

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Build the optimizer over groups of parameters.

        Raises:
            ConfigError: the options contradict each other, or a required package is missing.
            PluginError: the builder did not return an optimizer.
        """
        return self._build(groups, self.optimizer.wrap(self.optimizer.component.target()))

    def schedule(self, optimizer: Optimizer, total_updates: int | None) -> LRScheduler:
        """Build the learning-rate schedule of an optimizer.

        Args:
            optimizer: the optimizer whose learning rate is scheduled.
            total_updates: optimizer steps of the run; None if only a time budget limits the run.

        Raises:
            ConfigError: the schedule needs the number of steps, or the options contradict each other.
            PluginError: the builder did not return a schedule.
        """
        target = self.scheduler.wrap(self.scheduler.component.target())
        return self._schedule(optimizer, total_updates, target)

    def course(self, total_updates: int | None) -> dict[str, object]:
        """Return the plain values that decide the learning rate at each position of the schedule."""
        names = ("lr", "scheduler", "scheduler_options", "warmup_steps")
        reads_total = _has(parameters_of(self.scheduler), TOTAL)
        values = {name: unstructure(getattr(self.config, name)) for name in names}
        return values | ({"total_updates": total_updates} if reads_total else {})

    def kept(self, device: torch.device) -> tuple[set[str], set[str]]:
        """Return the names of what the optimizer keeps of a matrix, and of a vector, once it has made a step."""
        optimizer = self._trial(device)
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        for each in parameters:
            each.grad = torch.ones_like(each)
        optimizer.step()
        matrix, vector = (set(optimizer.state.get(each, ())) for each in parameters)
        return matrix, vector

    def check(self) -> None:
        """Check the options before the run, by building optimizer and schedule for two small parameters.

        Raises:
            ConfigError: as in `build` and `schedule`, or the optimizer or schedule does not have an option that is set.
            PluginError: as in `build` and `schedule`.
        """
        self._check_used()
        self._schedule(self._trial(), _TRIAL_UPDATES, self.scheduler.component.target())

    def _trial(self, device: torch.device | None = None) -> Optimizer:
        """Return the optimizer of a small matrix and a small vector."""
        groups: list[dict[str, object]] = [
            {"params": [torch.nn.Parameter(torch.zeros(2, 2, device=device))]},
            {"params": [torch.nn.Parameter(torch.zeros(2, device=device))], "weight_decay": 0.0},
        ]
        return self._build(groups, self.optimizer.component.target())

    def _check_used(self) -> None:
        """Raise ConfigError for options that are set but that the optimizer or schedule does not have."""
        parameters = parameters_of(self.optimizer)
        lines = [
            f"{self.where}.{name} = {value!r}: {self.optimizer.component} has no such option; omit it, or set null"
            for name in COMMON_OPTIONS
            if (value := getattr(self.config, name)) is not None and not _has(parameters, name)
        ]
        if self.config.warmup_steps and not _has(parameters_of(self.scheduler), WARMUP):
            lines.append(
                f"{self.where}.warmup_steps = {self.config.warmup_steps}: {self.scheduler.component} has no warm-up; "
                "omit it"
            )
        if lines:
            raise ConfigError("\n".join(lines))

    def _build(self, groups: list[dict[str, object]], target: object) -> Optimizer:
        common = {name: value for name in COMMON_OPTIONS if (value := getattr(self.config, name)) is not None}
        built: object = self._call(self.optimizer, target, groups, {"lr": self.config.lr or _TRIAL_RATE, **common})
        if not isinstance(built, Optimizer):
            name = type(built).__name__
            raise PluginError(f"{self.optimizer.component} built a {name}; it must build a torch.optim.Optimizer")
        return built

    def _schedule(self, optimizer: Optimizer, total_updates: int | None, target: object) -> LRScheduler:
        parameters = parameters_of(self.scheduler)
        total = None if parameters is None else parameters.get(TOTAL)
        if total_updates is None and total is not None and total.default is total.empty:
            raise ConfigError(
                f"{self.where}.scheduler = {self.config.scheduler!r}: the number of steps is unknown: set run.steps "
                "(a time budget is not enough)"
            )
        steps = {WARMUP: self.config.warmup_steps, TOTAL: total_updates}
        arguments = {name: value for name, value in steps.items() if _has(parameters, name)}
        built: object = self._call(self.scheduler, target, optimizer, arguments)
        if not isinstance(built, LRScheduler) or isinstance(built, ReduceLROnPlateau):
            raise PluginError(
                f"{self.scheduler.component} built a {type(built).__name__}; it must build a schedule of "
                "torch.optim.lr_scheduler, whose step() takes no metric"
            )
        return built

    def _call(self, choice: Choice, target: Any, first: Any, arguments: Mapping[str, object]) -> Any:
        fields = () if choice.options is None else attrs.fields(type(choice.options))
        options = {field.alias or field.name: getattr(choice.options, field.name) for field in fields}
        try:
            return target(first, **arguments, **options)
        except ValueError as error:
            raise ConfigError(f"{self.where}: {choice.component}: {error}") from error


class Optimizers:
    """The optimizer and schedule of every `OptimizerConfig` in a run.

    Those in the trainer's options are looked up and checked by the constructor, before the run builds or writes
    anything; an `OptimizerConfig` that a trainer creates itself is looked up and checked by `get`.

    Args:
        options: the trainer's options; None outside a run.
        chooser: lookup of names; by default one without a file name in its errors.

    Raises:
        UnknownOptimizer, UnknownScheduler: a name is not registered.
        ConfigError: an option is invalid.
    """

    def __init__(self, options: object = None, chooser: Chooser | None = None) -> None:
        self._chooser = chooser or Chooser("", Wrapping())
        self._declared = [self._choose(config, path) for path, config in sections(options, "trainer")]

    @property
    def plugins(self) -> dict[str, str]:
        """Return dist -> version of the packages that provide these optimizers and schedules."""
        components = (choice.component for each in self._declared for choice in (each.optimizer, each.scheduler))
        return {component.dist: component.version for component in components}

    def get(self, config: OptimizerConfig) -> Optimization:
        """Return the optimizer and schedule that `config` names."""
        for each in self._declared:
            if each.config == config:
                return each
        return self._choose(config, "trainer.optimizer")

    def _choose(self, config: OptimizerConfig, path: str) -> Optimization:
        known, choose, where = registries(), self._chooser.choice, self._chooser.where
        optimizer, scheduler = known.optimizers.get(config.name), known.schedulers.get(config.scheduler)
        for component in (optimizer, scheduler):
            check_keys(component, component.config_class(), BESIDE_OPTIONS[component.kind])
        optimization = Optimization(
            config=config,
            optimizer=choose(optimizer, config.options, f"{path}.options"),
            scheduler=choose(scheduler, config.scheduler_options, f"{path}.scheduler_options"),
            where=f"{where}: {path}" if where else path,
        )
        optimization.check()
        return optimization


def with_rate(config: OptimizerConfig, learner: Learner) -> OptimizerConfig:
    """Return the options with a learning rate: if they have none, that of a plugin (`Services.learning_rate`).

    Raises:
        ConfigError: no plugin has one.
    """
    rate = config.lr or services().learning_rate(config, learner)
    if rate is None:
        raise ConfigError("trainer.optimizer.lr = null: no plugin has a learning rate for this model: set a number")
    return evolve(config, lr=rate)


def sections(options: Any, path: str) -> Iterator[tuple[str, OptimizerConfig]]:
    """Yield the dotted path and value of every `OptimizerConfig` in a trainer's options."""
    if isinstance(options, OptimizerConfig):
        yield path, options
    elif attrs.has(type(options)):
        for field in attrs.fields(type(options)):
            yield from sections(getattr(options, field.name), f"{path}.{field.alias or field.name}")


def parameters_of(choice: Choice) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a component's target; None if it accepts any keyword or has no signature."""
    found = user_code.parameters_of(choice.component.target())
    return None if found is None or any(each.kind is each.VAR_KEYWORD for each in found.values()) else found


def _has(parameters: Mapping[str, inspect.Parameter] | None, name: str) -> bool:
    return parameters is None or name in parameters


class ScheduleClock:
    """The position of a learning-rate schedule, counted in optimizer steps.

    * During warm-up, the first `num_warmup` optimizer steps, the position is the number of optimizer steps made.
    * After it, the position is the number of optimizer steps planned so far: after s steps of the run at least
      s * `updates_per_step`, however many of them were skipped or left out.

    The two are the same while every planned optimizer step is made.

    Args:
        scheduler: the schedule; its `step()` advances the position by one.
        num_warmup: length of the warm-up.
        updates_per_step: optimizer steps planned for each step of the run.
        steps_done: returns the number of steps of the run that are done.
        options: plain values that decide the course of the schedule beside its position; a saved state of a schedule
            with other options is replaced by the state that this schedule has at the same progress.
    """

    def __init__(
        self,
        scheduler: LRScheduler,
        *,
        num_warmup: int,
        updates_per_step: int,
        steps_done: Callable[[], int],
        options: Mapping[str, object] | None = None,
    ) -> None:
        self._scheduler, self._num_warmup = scheduler, num_warmup
        self._updates_per_step, self._steps_done = updates_per_step, steps_done
        self._options = {**(options or {}), "updates_per_step": updates_per_step}
        self._first = copy.deepcopy(scheduler.state_dict())
        self._stride = 1.0
        self.num_made, self.position, self.planned = 0, 0, 0.0

    def spread(self, num_updates: int) -> None:
        """Spread the optimizer steps planned for the current step of the run over the `num_updates` it will make."""
        self._catch_up()
        self._stride = self._updates_per_step / num_updates

    def learning_rate(self) -> float:
        """Return the learning rate of the next optimizer step."""
        self._catch_up()
        return float(self._scheduler.get_last_lr()[0])

    def advance(self) -> None:
        """Count an optimizer step."""
        self.num_made += 1
        self.planned += self._stride
        self._move()

    def _catch_up(self) -> None:
        self.planned = max(self.planned, float(self._steps_done() * self._updates_per_step))
        self._move()

    def _move(self) -> None:
        target = self.num_made if self.num_made < self._num_warmup else int(self.planned + 1e-6)
        with warnings.catch_warnings():
            # A step of the run may leave out all of its optimizer steps, also the first step of all.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step\\(\\)` before")
            while self.position < target:
                self._scheduler.step()
                self.position += 1

    def state_dict(self) -> State:
        """Return the schedule's state, the position, and the options of the schedule."""
        position = {"num_made": self.num_made, "position": self.position, "planned": self.planned}
        return {"scheduler": self._scheduler.state_dict(), **position, "options": self._options}

    def load_state_dict(self, state: State) -> bool:
        """Restore the state that `state_dict` returned.

        Returns:
            Whether the schedule has other options than the one that was saved. Then it is stepped from its beginning to
            the saved progress, which sets the learning rate of the optimizer, so that must have its first one.
        """
        then = state.get("options", self._options)
        self.num_made, self.position, self.planned = state["num_made"], state["position"], state["planned"]
        if then == self._options:
            self._scheduler.load_state_dict(state["scheduler"])
            return False
        self._scheduler.load_state_dict(copy.deepcopy(self._first))
        self.position, self.planned = 0, self.planned * self._updates_per_step / then["updates_per_step"]
        self._move()
        return True


PARAMETERS = "params"


class BuiltOptions:
    """The options of an optimizer as they are when it has been built, with its learning-rate schedule.

    Args:
        built: the optimizer's name and options.
        optimizer: the optimizer, before its first step.
        num_matrices: how many of its parameters, in their order, are matrices; the others are vectors.
    """

    def __init__(self, built: Optimization, optimizer: Optimizer, num_matrices: int) -> None:
        self._built, self._optimizer, self._num_matrices = built, optimizer, num_matrices
        self._groups = [_options(group) for group in optimizer.param_groups]
        self._counts = [len(group[PARAMETERS]) for group in optimizer.param_groups]
        self._begun = {name: _first(value) for kept in optimizer.state.values() for name, value in kept.items()}

    @property
    def record(self) -> dict[str, Any]:
        """Return plain values to compare with those of a resumed run."""
        return {"groups": unstructure(self._groups), "begun": self._begun}

    def check_parameters(self, saved: dict[str, Any]) -> None:
        """Check that a saved state of the optimizer is of as many parameters.

        Raises:
            CheckpointError: it is not.
        """
        counts = [len(group[PARAMETERS]) for group in saved["param_groups"]]
        if counts != self._counts:
            raise CheckpointError(
                f"{self._built.where}: the optimizer of the checkpoint trains {sum(counts)} parameters, and this run "
                f"{sum(self._counts)}, because other ones are frozen: resume with the original options of the section "
                "model, such as unfrozen_layers, or start a new run from the checkpoint's model folder"
            )

    def reset(self) -> None:
        """Set all options to those with which the optimizer was built."""
        for group, options in zip(self._optimizer.param_groups, self._groups, strict=True):
            group.update(options)

    def applied(
        self, saved: dict[str, Any], then: dict[str, Any] | None, *, has_other_schedule: bool
    ) -> dict[str, Any]:
        """Return a saved state of the optimizer with the present options in place of those that have changed.

        Args:
            saved: the state.
            then: the `record` of the optimizer that was saved; None if it has not been saved, which changes nothing.
            has_other_schedule: whether the schedule has changed, so that what it has set is its present value.

        Raises:
            CheckpointError: the present options need what the saved state does not contain.
        """
        if then is None or not (has_other_schedule or then != self.record):
            return saved
        if then != self.record:
            self._check_kept(saved["state"], then["begun"])
        groups = []
        for old, first, own, group in zip(
            saved["param_groups"], then["groups"], self._groups, self._optimizer.param_groups, strict=True
        ):
            learned = {name: value for name, value in old.items() if name == PARAMETERS or name not in first}
            moved = {name for name in own if has_other_schedule and (name == "lr" or group[name] != own[name])}
            same = {name for name in own if name in old and first.get(name, _ABSENT) == unstructure(own[name])}
            groups.append(_options(group) | {name: old[name] for name in same - moved} | learned)
        return {**saved, "param_groups": groups}

    def _check_kept(self, saved: dict[Any, dict[str, Any]], begun: dict[str, float]) -> None:
        """Raise CheckpointError unless the saved state has what a step with the present options needs."""
        where, name = self._built.where, self._built.config.name
        advice = f"resume with the original {where}.name and {where}.options, or start a new run from the checkpoint's "
        if begun.keys() == self._begun.keys() and begun != self._begun:
            raise CheckpointError(
                f"{where}.options: they set the initial values of {', '.join(begun)}, which the optimizer '{name}' has "
                f"changed since: {advice}model folder"
            )
        kinds = (range(self._num_matrices), range(self._num_matrices, len(saved) + self._num_matrices))
        device = self._optimizer.param_groups[0][PARAMETERS][0].device
        for indices, needed in zip(kinds, self._built.kept(device), strict=True):
            kept = {each for index in indices for each in saved.get(index, ())}
            if (kept or self._begun) and (missing := sorted(needed - kept)):
                raise CheckpointError(
                    f"{where}: the optimizer '{name}' with these options continues from {', '.join(missing)}, which "
                    f"the optimizer of the checkpoint did not keep: {advice}model folder"
                )


_ABSENT = object()


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != PARAMETERS}


def _first(value: object) -> float:
    """Return the first of the numbers that an optimizer keeps of a parameter before the first step."""
    return float(torch.as_tensor(value).flatten()[0])
