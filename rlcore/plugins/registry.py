"""The registries of components, one per kind, with look-up by name.

Also in this file: errors for names that no installed component has: the nearest name, and the package that it comes
with.
"""

from __future__ import annotations

import difflib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from rlcore import errors
from rlcore.components import KINDS, Component, normalise
from rlcore.config.yaml_files import find_synonym
from rlcore.hookspecs import Services
from rlcore.plugins.builtin import Published, how_to_install, published
from rlcore.plugins.discovery import Discovery, Plugin, discover
from rlcore.plugins.metadata import is_on, selection

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


LINE_WIDTH = 90
"""Width of lists of components in errors and tables, without their indentation."""


def explain_unknown(name: str, kind: str, components: Sequence[Component[Any]], plugins: Sequence[Plugin]) -> str:
    """Return the error for a name that no component of a kind has: the nearest name, and what is installed."""
    lines = [f"no {KINDS[kind]} is called '{name}'.{_suggest(str(name), kind, components, plugins)}"]
    installed = [f"{component.name} ({component.dist} {component.version})" for component in components] or ["none"]
    lines += [f"{'              ' if i else '  installed:  '}{row}" for i, row in enumerate(_wrap(installed))]
    missing = [plugin for plugin in plugins if not plugin.is_loaded]
    for i, plugin in enumerate(missing):
        lines.append(f"  {'not loaded: ' if i == 0 else '            '}{plugin}, {plugin.reason}")
    lines.append("  see:        rlcore list-plugins")
    return "\n".join(lines)


def _suggest(name: str, kind: str, components: Sequence[Component[object]], plugins: Sequence[Plugin]) -> str:
    """Return the nearest name among installed and published components, and how to install it."""
    here = {other: component for component in components for other in (component.name, component.qualified)}
    elsewhere = {other: one for short, one in published(kind).items() for other in (short, f"{one.dist}:{short}")}
    synonym = find_synonym(name, kind)
    if synonym and (synonym.ours in here or synonym.ours in elsewhere):
        options, known = f" with {synonym.how}" if synonym.how else "", synonym.ours in here
        source = "" if known else f", which {describe_source(elsewhere[synonym.ours], plugins)}"
        return f" Use {KINDS[kind]} '{synonym.ours}'{options}{source}."
    dist, colon, short = name.rpartition(":")
    exact = f"{normalise(dist)}{colon}{short}"
    near = difflib.get_close_matches(
        name.lower(), {**here, **({} if exact in elsewhere else elsewhere)}, n=1, cutoff=0.5
    )
    text = ""
    if near and near[0] in here:
        text = f" Did you mean '{near[0]}' ({here[near[0]].dist} {here[near[0]].version})?"
    elif near:
        text = f" Did you mean '{near[0]}'? It {describe_source(elsewhere[near[0]], plugins)}"
    return text + (f" '{name}' {describe_source(elsewhere[exact], plugins)}" if exact in elsewhere else "")


def _wrap(items: Sequence[str]) -> list[str]:
    """Return the items, separated by commas, in lines of at most `LINE_WIDTH` characters, none of them broken."""
    lines = [""]
    for i, item in enumerate(items):
        text = f"{item}," if i < len(items) - 1 else item
        if lines[-1] and len(lines[-1]) + 1 + len(text) > LINE_WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {text}".lstrip()
    return lines


def describe_source(published: Published, plugins: Sequence[Plugin]) -> str:
    """Return where a component comes from, and how to install or enable its dist, as the end of a sentence."""
    dist = published.dist
    own = [plugin for plugin in plugins if plugin.dist == dist]
    if not own:
        return f"comes with {dist}, which is not installed: {how_to_install(dist, published.extra)}"
    plugin = next((plugin for plugin in own if not plugin.is_loaded), own[0])
    if plugin.is_loaded:
        return f"comes with other versions of {dist}; {plugin.version} is installed"
    return f"comes with {dist}, which is installed, but {plugin.state}"


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


def services() -> Services:
    """Return what the plugins do for the core; a service is asked of one after another."""
    return all_registries().discovery.services


def build_registries(discovery: Discovery) -> Registries:
    """Return the registries of the discovered components."""
    by_kind: dict[str, Registry[Any]] = {
        kind: Registry(kind, [part for part in discovery.components if part.kind == kind], discovery.plugins)
        for kind in KINDS
    }
    return Registries(discovery=discovery, **by_kind)
