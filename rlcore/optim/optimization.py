"""Choose optimizers and learning-rate schedules by the names in a trainer's options, and build them.

A builder is given by name what its signature has, so that classes of torch and functions of `transformers` are
components as they are; see `rlcore.protocols`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from rlcore.errors import ConfigError, PluginError
from rlcore.optim.optimizer_options import BESIDE_OPTIONS, COMMON, TOTAL, WARMUP
from rlcore.plugins.choice import Choice, Chooser, check_keys
from rlcore.plugins.registry import registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.settings import OptimizerConfig

_TRIAL_UPDATES = 10**9


@attrs.frozen(eq=False)
class Optimization:
    """Hold the optimizer and the schedule that one section of options names, with their options checked.

    Attributes:
        config: the section.
        where: file and dotted path of it, for errors.
    """

    config: OptimizerConfig
    optimizer: Choice
    scheduler: Choice
    where: str

    def build(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Build the optimizer over groups of parameters.

        Raises:
            ConfigError: its options do not go together, or a package it needs is missing.
            PluginError: what was built is no optimizer.
        """
        return self._build(groups, self.optimizer.wrap(self.optimizer.component.target()))

    def schedule(self, optimizer: Optimizer, total_updates: int | None) -> LRScheduler:
        """Build the schedule of an optimizer; `total_updates` is its number of steps, None where only time bounds it.

        Raises:
            ConfigError: it needs to know the last step, or its options do not go together.
            PluginError: what was built is no schedule.
        """
        target = self.scheduler.wrap(self.scheduler.component.target())
        return self._schedule(optimizer, total_updates, target)

    def check(self) -> None:
        """Refuse what cannot be used, before a run begins: the builders are tried on parameters of no size.

        Raises:
            ConfigError: as `build` and `schedule` do, and for an option that optimizer or schedule has no use for.
            PluginError: as `build` and `schedule` do.
        """
        self._check_used()
        groups: list[dict[str, Any]] = [
            {"params": [torch.nn.Parameter(torch.zeros(2, 2))]},
            {"params": [torch.nn.Parameter(torch.zeros(2))], "weight_decay": 0.0},
        ]
        optimizer = self._build(groups, self.optimizer.component.target())
        self._schedule(optimizer, _TRIAL_UPDATES, self.scheduler.component.target())

    def _check_used(self) -> None:
        """Refuse options that nobody would read: a user who set one believes that it does something."""
        takes = parameters_of(self.optimizer)
        lines = [
            f"{self.where}.{name} = {value!r}: {self.optimizer.component} has no use for it; leave it out, or set null"
            for name in COMMON
            if (value := getattr(self.config, name)) is not None and not _has(takes, name)
        ]
        if self.config.warmup_steps and not _has(parameters_of(self.scheduler), WARMUP):
            lines.append(
                f"{self.where}.warmup_steps = {self.config.warmup_steps}: {self.scheduler.component} has no warm-up; "
                "leave it out"
            )
        if lines:
            raise ConfigError("\n".join(lines))

    def _build(self, groups: list[dict[str, Any]], target: Any) -> Optimizer:
        given = {name: value for name in COMMON if (value := getattr(self.config, name)) is not None}
        built: Any = self._called(self.optimizer, target, groups, {"lr": self.config.lr, **given})
        if not isinstance(built, Optimizer):
            made = type(built).__name__
            raise PluginError(f"{self.optimizer.component} built a {made}; it must build a torch.optim.Optimizer")
        return built

    def _schedule(self, optimizer: Optimizer, total_updates: int | None, target: Any) -> LRScheduler:
        takes = parameters_of(self.scheduler)
        total = None if takes is None else takes.get(TOTAL)
        if total_updates is None and total is not None and total.default is total.empty:
            raise ConfigError(
                f"{self.where}.scheduler = {self.config.scheduler!r}: needs to know the last step: set run.steps "
                "(a budget in time alone does not tell it)"
            )
        told = {WARMUP: self.config.warmup_steps, TOTAL: total_updates}
        given = {name: value for name, value in told.items() if _has(takes, name)}
        built: Any = self._called(self.scheduler, target, optimizer, given)
        if not isinstance(built, LRScheduler) or isinstance(built, ReduceLROnPlateau):
            raise PluginError(
                f"{self.scheduler.component} built a {type(built).__name__}; it must build a schedule of "
                "torch.optim.lr_scheduler, whose step() takes no metric"
            )
        return built

    def _called(self, choice: Choice, target: Any, first: Any, given: Mapping[str, Any]) -> Any:
        fields = () if choice.options is None else attrs.fields(type(choice.options))
        options = {field.alias or field.name: getattr(choice.options, field.name) for field in fields}
        try:
            return target(first, **given, **options)
        except ValueError as error:
            raise ConfigError(f"{self.where}: {choice.component}: {error}") from error


class Optimizers:
    """Find the optimizer and schedule of every `OptimizerConfig` in a run.

    Those in the trainer's options are chosen and tried when this is made, before anything is built or written; one that
    a trainer makes itself, when it asks for it.

    Args:
        options: the trainer's; nothing, outside a run.
        chooser: what looks names up; without a word of where they come from when left out.

    Raises:
        UnknownOptimizer, UnknownScheduler: nobody registered a name.
        ConfigError: an option cannot be used.
    """

    def __init__(self, options: Any = None, chooser: Chooser | None = None) -> None:
        self._chooser = chooser or Chooser("", Wrapping())
        self._found = [self._choose(config, path) for path, config in sections(options, "trainer")]

    @property
    def plugins(self) -> dict[str, str]:
        """Return the version of every distribution that one of them comes from."""
        chosen = (choice.component for each in self._found for choice in (each.optimizer, each.scheduler))
        return {component.dist: component.version for component in chosen}

    def get(self, config: OptimizerConfig) -> Optimization:
        """Return what `config` names."""
        for each in self._found:
            if each.config == config:
                return each
        return self._choose(config, "trainer.optimizer")

    def _choose(self, config: OptimizerConfig, path: str) -> Optimization:
        known, choose, where = registries(), self._chooser.choice, self._chooser.where
        optimizer, scheduler = known.optimizers.get(config.name), known.schedulers.get(config.scheduler)
        for component in (optimizer, scheduler):
            check_keys(component, component.config_class(), BESIDE_OPTIONS[component.kind])
        chosen = Optimization(
            config=config,
            optimizer=choose(optimizer, config.options, f"{path}.options"),
            scheduler=choose(scheduler, config.scheduler_options, f"{path}.scheduler_options"),
            where=f"{where}: {path}" if where else path,
        )
        chosen.check()
        return chosen


def sections(options: Any, path: str) -> Iterator[tuple[str, OptimizerConfig]]:
    """Yield every section in a trainer's options that names an optimizer, with its dotted path."""
    if isinstance(options, OptimizerConfig):
        yield path, options
    elif attrs.has(type(options)):
        for field in attrs.fields(type(options)):
            yield from sections(getattr(options, field.name), f"{path}.{field.alias or field.name}")


def parameters_of(choice: Choice) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of a component's target; None where it takes any, or does not say."""
    target: Any = choice.component.target()
    try:
        found = inspect.signature(target).parameters
    except (ValueError, TypeError):  # what is written in another language need not say
        return None
    return None if any(each.kind is each.VAR_KEYWORD for each in found.values()) else found


def _has(takes: Mapping[str, inspect.Parameter] | None, name: str) -> bool:
    return takes is None or name in takes
