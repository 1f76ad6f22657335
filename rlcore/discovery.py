"""Find and load plugins, one at a time, so that none can break another; every state is kept and shown.

A plugin is *ok*, *disabled* (a switch says so), *incompatible* (its metadata asks for another rlcore), *broken* (its
import or a hook of it raised, or a hook is misspelt), or in *conflict* (a name it registers is taken by another dist;
the full names work).
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Any

import attrs
import pluggy
from packaging.requirements import Requirement

from rlcore import hookspecs
from rlcore.components import KINDS, Component, check_component, describe_error, normalise
from rlcore.errors import PluginError
from rlcore.finding import CORE, Found, find_plugins
from rlcore.switches import is_on, listed, remark_on_switches


class State(StrEnum):
    """How a plugin is."""

    OK = "ok"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    CONFLICT = "conflict"


@attrs.frozen(eq=False)
class Plugin:
    """Hold what became of one entry point.

    Attributes:
        dist, version, name, module: as its metadata says.
        state: how it is; `reason` says why in one line where it is not ok.
        error: what it raised, if it did.
        components: all it registered, in order.
    """

    dist: str
    version: str
    name: str
    module: str
    state: State = State.OK
    reason: str = ""
    error: BaseException | None = None
    components: tuple[Component[Any], ...] = ()

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"


@attrs.frozen(eq=False)
class Discovery:
    """Hold every plugin found, the hooks of those that loaded, and remarks on the switches."""

    plugins: tuple[Plugin, ...]
    hooks: pluggy.PluginManager
    notes: tuple[str, ...]

    @property
    def components(self) -> list[Component[Any]]:
        """List all that was registered."""
        return [component for plugin in self.plugins for component in plugin.components]


class _Refused(Exception):
    """Carry a state and a reason out of the steps of loading."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


def discover(environ: Mapping[str, str] | None = None, path: Sequence[str] | None = None) -> Discovery:
    """Load every plugin installed on `path` (`sys.path` without the working folder), and never raise for one.

    Args:
        environ: where the switches are read; the process's own when left out.
        path: folders searched for metadata.
    """
    environ = os.environ if environ is None else environ
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    if is_on(environ, "RLCORE_TRACE_PLUGINS"):
        hooks.add_hookcall_monitoring(before=_trace_call, after=lambda *_: None)
    found = find_plugins(path)
    plugins: list[Plugin] = []
    for candidate in found:
        plugins.append(_load(candidate, hooks, environ, plugins))  # each load sees those before it
    known = {name for candidate in found for name in candidate.names}
    return Discovery(tuple(_mark_conflicts(plugins)), hooks, tuple(remark_on_switches(known, environ)))


def _trace_call(hook: str, implementations: Sequence[pluggy.HookImpl], _: Mapping[str, Any]) -> None:
    if implementations:
        sys.stderr.write(f"rlcore: {hook}: {', '.join(each.plugin_name for each in implementations)}\n")


def _load(found: Found, hooks: pluggy.PluginManager, environ: Mapping[str, str], earlier: Sequence[Plugin]) -> Plugin:
    """Load one plugin behind the fence: whatever it raises becomes its state and reason."""
    plugin = Plugin(found.dist, found.version, found.name, found.module)
    start = time.perf_counter()
    try:
        if found.problem:
            raise _Refused(State.BROKEN, found.problem)
        _check_disabled(found, environ)
        _check_requirements(found)
        module = _import(found.module)
        _check_hooks(module, hooks)
        plugin = attrs.evolve(plugin, components=_register(module, plugin, hooks, earlier))
    except KeyboardInterrupt:
        raise
    except _Refused as refused:
        plugin = attrs.evolve(plugin, state=refused.state, reason=refused.reason, error=refused)
    except pluggy.PluginValidationError as error:
        first, *_, last = str(error).splitlines()  # which hook; a definition; what is wrong with it
        reason = f"{first}: {last}"
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    except BaseException as error:  # noqa: BLE001  # a stranger's module may raise anything, SystemExit included
        reason = str(error) if isinstance(error, PluginError) else describe_error(error)
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    if is_on(environ, "RLCORE_TRACE_PLUGINS"):
        brought = ", ".join(component.name for component in plugin.components) or plugin.reason or "nothing"
        spent = 1e3 * (time.perf_counter() - start)
        sys.stderr.write(f"rlcore: {plugin}: {plugin.module}: {plugin.state} in {spent:.1f} ms: {brought}\n")
    return plugin


def _check_disabled(found: Found, environ: Mapping[str, str]) -> None:
    if found.dist == CORE:
        return
    if found.names & listed(environ, "RLCORE_DISABLE_PLUGINS"):
        raise _Refused(State.DISABLED, "RLCORE_DISABLE_PLUGINS names it")
    if "RLCORE_PLUGINS" in environ and not found.names & listed(environ, "RLCORE_PLUGINS"):
        raise _Refused(State.DISABLED, "RLCORE_PLUGINS does not name it")


def _check_requirements(found: Found) -> None:
    from rlcore import __version__

    if found.dist == CORE:
        return
    for line in found.requires:
        try:
            requirement = Requirement(line)
        except ValueError as error:
            raise _Refused(State.BROKEN, f"its metadata has an unreadable requirement {line!r}") from error
        if normalise(requirement.name) != CORE or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            raise _Refused(State.INCOMPATIBLE, f"needs rlcore{requirement.specifier}, this is rlcore {__version__}")


def _import(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    plugin: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    return plugin


def _check_hooks(module: Any, hooks: pluggy.PluginManager) -> None:
    """Refuse hooks that nobody would ever call: misspelt, or without the decorator."""
    known = [name for name in vars(hooks.hook) if not name.startswith("_")]
    for name in dir(module):
        options = hooks.parse_hookimpl_opts(module, name)
        if options is None:
            if name in known and callable(getattr(module, name)):
                raise _Refused(State.BROKEN, f"{name} is not decorated with @rlcore.hookimpl")
        elif (options.get("specname") or name) not in known and not options.get("optionalhook"):
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the hooks are {', '.join(known)}"
            raise _Refused(State.BROKEN, f"rlcore has no hook '{name}'; {hint}")


def _register(
    module: Any, plugin: Plugin, hooks: pluggy.PluginManager, earlier: Sequence[Plugin]
) -> tuple[Component[Any], ...]:
    """Call the register hooks of one plugin; take nothing from it, hooks included, unless all of them succeed."""
    if hooks.is_registered(module):
        raise _Refused(State.CONFLICT, f"{plugin.module} is loaded already, for {hooks.get_name(module)}")
    brought: list[Component[Any]] = []
    try:
        hooks.register(module, name=f"{plugin.dist}:{plugin.name}")
        others = [other for other in hooks.get_plugins() if other is not module]
        for kind in KINDS:
            call = hooks.subset_hook_caller(f"register_{kind}", others)
            call(register=partial(_collect, brought, kind, plugin))
        _check_taken(brought, earlier)
    except BaseException:
        if hooks.is_registered(module):
            hooks.unregister(module)
        raise
    return tuple(brought)


def _check_taken(brought: Sequence[Component[Any]], earlier: Sequence[Plugin]) -> None:
    """Refuse a full name that another entry point of the same dist has taken; nothing could tell the two apart."""
    taken = {(component.kind, component.qualified): plugin for plugin in earlier for component in plugin.components}
    for component in brought:
        owner = taken.get((component.kind, component.qualified))
        if owner:
            what = f"{KINDS[component.kind]} '{component.name}'"
            raise _Refused(State.CONFLICT, f"the entry point '{owner.name}' of {owner} brings a {what} already")


def _collect(
    brought: list[Component[Any]],
    kind: str,
    plugin: Plugin,
    name: str,
    target: Any,
    *,
    config: Any = None,
    summary: str = "",
) -> None:
    component: Component[Any] = Component(
        kind=kind,
        name=name,
        dist=plugin.dist,
        version=plugin.version,
        summary=summary,
        reference=target,
        config_reference=config,
    )
    check_component(component)
    if any(other.kind == kind and other.name == name for other in brought):
        raise PluginError(f"it registers {KINDS[kind]} '{name}' twice")
    brought.append(component)


def _mark_conflicts(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Set the state of plugins whose names are taken by others too; nobody comes first."""
    owners: dict[tuple[str, str], list[Plugin]] = defaultdict(list)
    for plugin in plugins:
        for component in plugin.components:
            owners[component.kind, component.name].append(plugin)
    marked = []
    for plugin in plugins:
        reasons = []
        for component in plugin.components:
            others = [other for other in owners[component.kind, component.name] if other is not plugin]
            if others:
                names = " and ".join(map(str, others))
                what = f"{KINDS[component.kind]} '{component.name}'"
                reasons.append(f"{names} brings a {what} too: say '{component.qualified}'")
        marked.append(attrs.evolve(plugin, state=State.CONFLICT, reason="; ".join(reasons)) if reasons else plugin)
    return marked
