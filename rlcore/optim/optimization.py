"""Optimizers and learning-rate schedules named in a trainer's options: look them up, check their options, build them.

A builder is called with the keyword arguments in its signature, so that classes of torch and functions of
`transformers` can be registered unchanged; see `rlcore.protocols`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rlcore.components import BESIDE_OPTIONS, COMMON_OPTIONS, TOTAL, WARMUP
from rlcore.config import evolve, unstructure
from rlcore.data import user_code
from rlcore.errors import ConfigError, PluginError
from rlcore.plugins.choice import Choice, Chooser, check_keys
from rlcore.plugins.fence import first_result
from rlcore.plugins.registry import registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.protocols import Learner
from rlcore.settings import OptimizerConfig

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

    def course(self, total_updates: int | None) -> dict[str, Any]:
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
        groups: list[dict[str, Any]] = [
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

    def _build(self, groups: list[dict[str, Any]], target: Any) -> Optimizer:
        common = {name: value for name in COMMON_OPTIONS if (value := getattr(self.config, name)) is not None}
        built: Any = self._call(self.optimizer, target, groups, {"lr": self.config.lr or _TRIAL_RATE, **common})
        if not isinstance(built, Optimizer):
            name = type(built).__name__
            raise PluginError(f"{self.optimizer.component} built a {name}; it must build a torch.optim.Optimizer")
        return built

    def _schedule(self, optimizer: Optimizer, total_updates: int | None, target: Any) -> LRScheduler:
        parameters = parameters_of(self.scheduler)
        total = None if parameters is None else parameters.get(TOTAL)
        if total_updates is None and total is not None and total.default is total.empty:
            raise ConfigError(
                f"{self.where}.scheduler = {self.config.scheduler!r}: the number of steps is unknown: set run.steps "
                "(a time budget is not enough)"
            )
        steps = {WARMUP: self.config.warmup_steps, TOTAL: total_updates}
        arguments = {name: value for name, value in steps.items() if _has(parameters, name)}
        built: Any = self._call(self.scheduler, target, optimizer, arguments)
        if not isinstance(built, LRScheduler) or isinstance(built, ReduceLROnPlateau):
            raise PluginError(
                f"{self.scheduler.component} built a {type(built).__name__}; it must build a schedule of "
                "torch.optim.lr_scheduler, whose step() takes no metric"
            )
        return built

    def _call(self, choice: Choice, target: Any, first: Any, arguments: Mapping[str, Any]) -> Any:
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

    def __init__(self, options: Any = None, chooser: Chooser | None = None) -> None:
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
    """Return the options with a learning rate: if they have none, that of the hook `default_learning_rate`.

    Raises:
        ConfigError: no plugin has one.
    """
    rate = config.lr or first_result("default_learning_rate", config=config, learner=learner)
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
