"""Find and load plugins, one at a time, so that none can break another; every state is kept and shown.

A plugin is *ok*, *heavy* (it works, and slows every command: its import brings torch or the like), *disabled* (a switch
or the configuration says so), *incompatible* (its metadata asks for another rlcore), *broken* (its import or a hook of
it raised, or a hook is misspelt), or in *conflict* (a name it registers is taken by another dist; the full names work).
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import pluggy

from rlcore import hookspecs
from rlcore.components import KINDS, Component, check_component, describe_error
from rlcore.errors import PluginError
from rlcore.plugins.checks import (
    Refused,
    State,
    check_disabled,
    check_hooks,
    check_requirements,
    heavy_imports,
    preserve_process_state,
)
from rlcore.plugins.metadata import InstalledPlugin, find_plugins
from rlcore.plugins.switches import is_on, remark_on_switches

__all__ = ["Discovery", "Plugin", "State", "discover"]


@attrs.frozen(eq=False)
class Plugin:
    """Hold what became of one entry point.

    Attributes:
        dist, version, name, module: as its metadata says.
        state: how it is; `reason` says why in one line where it is not ok.
        error: what it raised, if it did.
        components: all it registered, in order.
        remarks: what it implements that is deprecated.
    """

    dist: str
    version: str
    name: str
    module: str
    state: State = State.OK
    reason: str = ""
    error: BaseException | None = None
    components: tuple[Component[Any], ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def is_loaded(self) -> bool:
        """Tell whether its hooks are called and its components can be chosen, by their full names at least."""
        return self.state in {State.OK, State.HEAVY} or bool(self.components)

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"


@attrs.frozen(eq=False)
class Discovery:
    """Hold every plugin found, the hooks of those that loaded, and notes on switches and on dists found twice."""

    plugins: tuple[Plugin, ...]
    hooks: pluggy.PluginManager
    notes: tuple[str, ...]

    @property
    def components(self) -> list[Component[Any]]:
        """List all that was registered."""
        return [component for plugin in self.plugins for component in plugin.components]

    @property
    def complaints(self) -> list[str]:
        """Say all that keeps what is installed from being what runs, and all of it from being ok."""
        faulty = (plugin for plugin in self.plugins if plugin.state is not State.OK)
        return [*(f"{plugin} is {plugin.state}: {plugin.reason}" for plugin in faulty), *self.notes]


def discover(
    environ: Mapping[str, str] | None = None, path: Sequence[str] | None = None, specs: Any = hookspecs
) -> Discovery:
    """Load every plugin installed on `path` (`sys.path` without the working folder), and never raise for one.

    Args:
        environ: where the switches are read; the process's own when left out.
        path: folders searched for metadata.
        specs: module of the hooks that plugins may implement.
    """
    environ = os.environ if environ is None else environ
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(specs)
    if is_on(environ, "RLCORE_TRACE_PLUGINS"):
        hooks.add_hookcall_monitoring(before=_trace_call, after=lambda *_: None)
    found = find_plugins(path)
    plugins: list[Plugin] = []
    for candidate in found.plugins:
        with preserve_process_state():
            plugins.append(_load(candidate, hooks, environ, plugins))  # each load sees those before it
    known = {name for candidate in found.plugins for name in candidate.names}
    notes = (*found.notes, *remark_on_switches(known, environ))
    return Discovery(tuple(_mark_conflicts(plugins)), hooks, notes)


def _trace_call(hook: str, implementations: Sequence[pluggy.HookImpl], _: Mapping[str, Any]) -> None:
    if implementations:
        sys.stderr.write(f"rlcore: {hook}: {', '.join(each.plugin_name for each in implementations)}\n")


def _load(
    found: InstalledPlugin, hooks: pluggy.PluginManager, environ: Mapping[str, str], earlier: Sequence[Plugin]
) -> Plugin:
    """Load one plugin behind the fence: whatever it raises becomes its state and reason."""
    plugin = Plugin(found.dist, found.version, found.name, found.module)
    is_traced = is_on(environ, "RLCORE_TRACE_PLUGINS")
    if is_traced:  # before as well as after: an import may hang, or end the process
        sys.stderr.write(f"rlcore: {plugin}: {plugin.module}: to be loaded\n")
    start = time.perf_counter()
    try:
        if found.problem:
            raise Refused(State.BROKEN, found.problem)
        check_disabled(found, environ)
        check_requirements(found)
        before = set(sys.modules)
        module = _import(found.module)
        heavy = heavy_imports(found.module.partition(":")[0], before)
        check_hooks(module, hooks)
        plugin = _register(module, plugin, hooks, earlier)
        if heavy:
            plugin = attrs.evolve(plugin, state=State.HEAVY, reason=_describe_heavy(heavy))
    except KeyboardInterrupt:
        raise
    except Refused as refused:
        plugin = attrs.evolve(plugin, state=refused.state, reason=refused.reason, error=refused)
    except pluggy.PluginValidationError as error:
        first, *_, last = str(error).splitlines()  # which hook; a definition; what is wrong with it
        reason = f"{first}: {last}"
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    except BaseException as error:  # noqa: BLE001  # a stranger's module may raise anything, SystemExit included
        reason = describe_error(error)
        reason = reason.removeprefix("PluginError: ") if isinstance(error, PluginError) else reason
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    if is_traced:
        brought = ", ".join(component.name for component in plugin.components) or plugin.reason or "nothing"
        spent = 1e3 * (time.perf_counter() - start)
        sys.stderr.write(f"rlcore: {plugin}: {plugin.module}: {plugin.state} in {spent:.1f} ms: {brought}\n")
    return plugin


def _describe_heavy(heavy: Sequence[str]) -> str:
    return (
        f"imports {' and '.join(heavy)} when it is loaded, which slows every command: import it in functions, or name "
        "targets as 'module:attribute'"
    )


def _import(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    plugin: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    return plugin


def _register(module: Any, plugin: Plugin, hooks: pluggy.PluginManager, earlier: Sequence[Plugin]) -> Plugin:
    """Call the register hooks of one plugin; take nothing from it, hooks included, unless all of them succeed."""
    if hooks.is_registered(module):
        raise Refused(State.CONFLICT, f"{plugin.module} is loaded already, for {hooks.get_name(module)}")
    brought: list[Component[Any]] = []
    try:
        with warnings.catch_warnings(record=True) as remarks:  # of deprecated hooks and arguments: pluggy warns here
            warnings.simplefilter("always")
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
    said = tuple(dict.fromkeys(str(remark.message) for remark in remarks))
    return attrs.evolve(plugin, components=tuple(brought), remarks=said)


def _check_taken(brought: Sequence[Component[Any]], earlier: Sequence[Plugin]) -> None:
    """Refuse a full name that another entry point of the same dist has taken; nothing could tell the two apart."""
    taken = {(component.kind, component.qualified): plugin for plugin in earlier for component in plugin.components}
    for component in brought:
        owner = taken.get((component.kind, component.qualified))
        if owner:
            what = f"{KINDS[component.kind]} '{component.name}'"
            raise Refused(State.CONFLICT, f"the entry point '{owner.name}' of {owner} brings a {what} already")


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
            if others and not component.is_reserved:
                names = " and ".join(map(str, others))
                what = f"{KINDS[component.kind]} '{component.name}'"
                reasons.append(f"{names} brings a {what} too: say '{component.qualified}'")
        if reasons:
            reason = "; ".join([*reasons, *filter(None, [plugin.reason])])  # a heavy one stays heavy besides
            plugin = attrs.evolve(plugin, state=State.CONFLICT, reason=reason)  # noqa: PLW2901  the same one, marked
        marked.append(plugin)
    return marked
