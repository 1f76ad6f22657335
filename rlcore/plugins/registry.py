"""The registries of components, one per kind, with look-up by name."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from rlcore import errors
from rlcore.components import KINDS, Component, normalise
from rlcore.plugins.discovery import Discovery, Plugin, discover
from rlcore.plugins.switches import is_on, selection
from rlcore.plugins.unknown_names import LINE_WIDTH, describe_source, explain_unknown  # noqa: F401  names of 0.1

if TYPE_CHECKING:
    from rlcore.protocols import (
        Architecture,
        Command,
        EnvironmentFactory,
        Logger,
        OptimizerBuilder,
        RolloutStore,
        Sampler,
        SchedulerBuilder,
        Sharding,
        Trainer,
    )


T = TypeVar("T")
_UNKNOWN: dict[str, type[errors.UnknownComponent]] = {
    "trainers": errors.UnknownTrainer,
    "pipelines": errors.UnknownPipeline,
    "architectures": errors.UnknownArchitecture,
    "rollout_stores": errors.UnknownRolloutStore,
    "loggers": errors.UnknownLogger,
    "samplers": errors.UnknownSampler,
    "rewards": errors.UnknownReward,
    "optimizers": errors.UnknownOptimizer,
    "schedulers": errors.UnknownScheduler,
    "shardings": errors.UnknownSharding,
    "environments": errors.UnknownEnvironment,
    "commands": errors.UnknownCommand,
}


class Registry(Generic[T]):
    """The components of one kind."""

    def __init__(self, kind: str, components: Sequence[Component[T]], plugins: Sequence[Plugin]) -> None:
        self.kind = kind
        self._components = sorted(components, key=lambda component: (component.name, component.dist))
        self._plugins = plugins
        self._by_name: dict[str, list[Component[T]]] = defaultdict(list)
        for component in self._components:
            self._by_name[component.name].append(component)

    def __iter__(self) -> Iterator[Component[T]]:
        return iter(self._components)

    def __len__(self) -> int:
        return len(self._components)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and len(self.matches(name)) == 1

    def get(self, name: str) -> Component[T]:
        """Return the component with the short name `name` or the full name `dist:name`.

        Raises:
            UnknownComponent: no plugin registered it; each kind has a subclass.
            AmbiguousComponent: several dists registered the short name.
        """
        matches = self.matches(name)
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise _UNKNOWN[self.kind](explain_unknown(name, self.kind, self._components, self._plugins))
        choices = " or ".join(f"'{match.qualified}' ({match.dist} {match.version})" for match in matches)
        raise errors.AmbiguousComponent(f"{len(matches)} {self.kind} are called '{name}': use {choices}")

    def matches(self, name: str) -> list[Component[T]]:
        """Return all components with the short or full name `name`."""
        dist, colon, short = str(name).rpartition(":")
        named = self._by_name.get(short, [])
        if colon:
            full = f"{normalise(dist)}:{short}"
            return [each for each in named if full == each.qualified]
        return [component for component in named if component.is_reserved] or list(named)


@attrs.frozen(eq=False)
class Registries:
    """All registries, and the discovery that filled them."""

    discovery: Discovery
    trainers: Registry[Callable[..., Trainer]]
    pipelines: Registry[Any]
    architectures: Registry[Architecture]
    rollout_stores: Registry[Callable[..., RolloutStore]]
    loggers: Registry[Callable[..., Logger]]
    samplers: Registry[Sampler]
    rewards: Registry[Callable[..., Any]]
    optimizers: Registry[OptimizerBuilder]
    schedulers: Registry[SchedulerBuilder]
    shardings: Registry[Callable[..., Sharding]]
    environments: Registry[EnvironmentFactory]
    commands: Registry[Command]

    def __iter__(self) -> Iterator[Registry[Any]]:
        return (getattr(self, kind) for kind in KINDS)


_memo: dict[tuple[int, tuple[str | None, ...]], Registries] = {}
_loading: set[int] = set()


def registries() -> Registries:
    """Return the components of the plugins that environment variables and the run's configuration enable.

    Plugins are loaded on the first call in a process, and again whenever the enabled plugins change.

    Raises:
        PluginError: RLCORE_STRICT_PLUGINS is set, and a plugin is neither ok nor disabled, or there is a note.
    """
    loaded = all_registries()
    complaints = loaded.discovery.complaints
    if is_on(os.environ, "RLCORE_STRICT_PLUGINS") and complaints:
        error = next((plugin.error for plugin in loaded.discovery.plugins if plugin.error), None)
        separator = ", and " if len(complaints) == 1 else "\n  and "
        raise errors.PluginError(separator.join(["RLCORE_STRICT_PLUGINS is set", *complaints])) from error
    return loaded


def all_registries() -> Registries:
    """Return the same as `registries`, but ignore RLCORE_STRICT_PLUGINS."""
    process = os.getpid()
    key = (process, selection(os.environ))
    if key not in _memo:
        if process in _loading:
            raise errors.PluginError("a plugin called registries() while it was being loaded")
        _loading.add(process)
        try:
            _memo[key] = build_registries(discover())
        finally:
            _loading.discard(process)
    return _memo[key]


def build_registries(discovery: Discovery) -> Registries:
    """Return the registries of the discovered components."""
    by_kind: dict[str, Registry[Any]] = {
        kind: Registry(kind, [part for part in discovery.components if part.kind == kind], discovery.plugins)
        for kind in KINDS
    }
    return Registries(discovery=discovery, **by_kind)
