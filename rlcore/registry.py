"""Choose a component by name: one typed registry per kind."""

from __future__ import annotations

import difflib
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from rlcore import errors
from rlcore.components import KINDS, Component, normalise
from rlcore.discovery import Discovery, Plugin, State, discover
from rlcore.switches import is_on

if TYPE_CHECKING:
    from rlcore.protocols import Architecture, Logger, RolloutStore, Sampler, Trainer

T = TypeVar("T")

_UNKNOWN: dict[str, type[errors.UnknownComponent]] = {
    "trainers": errors.UnknownTrainer,
    "pipelines": errors.UnknownPipeline,
    "architectures": errors.UnknownArchitecture,
    "rollout_stores": errors.UnknownRolloutStore,
    "loggers": errors.UnknownLogger,
    "samplers": errors.UnknownSampler,
    "rewards": errors.UnknownReward,
}


class Registry(Generic[T]):
    """Hold the components of one kind."""

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
        """Return the component called `name`, in short (`ppo`) or in full (`rlcore-ppo:ppo`).

        Raises:
            UnknownComponent: nobody registered it; the subclass tells the kind.
            AmbiguousComponent: several dists registered the short name.
        """
        matches = self.matches(name)
        if len(matches) == 1:
            return matches[0]
        if not matches:
            raise _UNKNOWN[self.kind](self._explain(name))
        choices = " or ".join(f"'{match.qualified}' ({match.dist} {match.version})" for match in matches)
        raise errors.AmbiguousComponent(f"{len(matches)} {self.kind} are called '{name}': say {choices}")

    def matches(self, name: str) -> list[Component[T]]:
        """Return every component that `name`, short or full, may stand for."""
        dist, colon, short = str(name).rpartition(":")
        found = self._by_name.get(short, [])
        return [component for component in found if component.dist == normalise(dist)] if colon else list(found)

    def _explain(self, name: str) -> str:
        names = {other: component for component in self for other in (component.name, component.qualified)}
        near = difflib.get_close_matches(str(name), list(names), n=1, cutoff=0.5)
        noun = KINDS[self.kind]
        line = f"no {noun} is called '{name}'."
        if near:
            line += f" Did you mean '{near[0]}' ({names[near[0]].dist} {names[near[0]].version})?"
        installed = ", ".join(f"{component.name} ({component.dist} {component.version})" for component in self)
        lines = [line, f"  installed:  {installed or 'none'}"]
        missing = [plugin for plugin in self._plugins if plugin.state is not State.OK and not plugin.components]
        for i, plugin in enumerate(missing):
            lines.append(f"  {'not loaded: ' if i == 0 else '            '}{plugin}, {plugin.reason}")
        lines[-1] += "        see: rlcore list-plugins"
        return "\n".join(lines)


@attrs.frozen(eq=False)
class Registries:
    """Hold every registry, and the discovery that filled them."""

    discovery: Discovery
    trainers: Registry[Callable[..., Trainer]]
    pipelines: Registry[Any]
    architectures: Registry[Architecture]
    rollout_stores: Registry[Callable[..., RolloutStore]]
    loggers: Registry[Callable[..., Logger]]
    samplers: Registry[Sampler]
    rewards: Registry[Callable[..., Any]]

    def __iter__(self) -> Iterator[Registry[Any]]:
        return (getattr(self, kind) for kind in KINDS)


_memo: dict[int, Registries] = {}
_loading: set[int] = set()


def registries() -> Registries:
    """Return what the plugins of this process registered, loading them on the first call in every process.

    Raises:
        PluginError: RLCORE_STRICT_PLUGINS is set and a plugin is incompatible, broken or in conflict.
    """
    found = all_registries()
    if is_on(os.environ, "RLCORE_STRICT_PLUGINS"):
        for plugin in found.discovery.plugins:
            if plugin.state not in {State.OK, State.DISABLED}:
                message = f"RLCORE_STRICT_PLUGINS is set, and {plugin} is {plugin.state}: {plugin.reason}"
                raise errors.PluginError(message) from plugin.error
    return found


def all_registries() -> Registries:
    """Return what `registries` returns, whatever state the plugins are in and however strict the switches are."""
    process = os.getpid()
    if process not in _memo:
        if process in _loading:
            raise errors.PluginError("a plugin asked for the registries while it was being loaded itself")
        _loading.add(process)
        try:
            _memo[process] = build_registries(discover())
        finally:
            _loading.discard(process)
    return _memo[process]


def build_registries(discovery: Discovery) -> Registries:
    """Sort what was discovered into registries."""
    by_kind: dict[str, Registry[Any]] = {
        kind: Registry(kind, [part for part in discovery.components if part.kind == kind], discovery.plugins)
        for kind in KINDS
    }
    return Registries(discovery=discovery, **by_kind)
