"""The loading of all installed plugins, one at a time, so that a broken one does not affect the others.

A plugin is *ok*, *heavy* (it works, but slows down every command, because it imports torch or the like), *disabled* (by
an environment variable or the configuration), *incompatible* (its metadata requires another rlcore), *broken* (its
import or a hook raised, or a hook is misspelt), or in *conflict* (another dist registers one of its names; the full
names work).
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
from rlcore.safe_text import write

__all__ = ["Discovery", "Plugin", "State", "discover"]


@attrs.frozen(eq=False)
class Plugin:
    """A plugin (one entry point), after the attempt to load it.

    Attributes:
        dist, version, name, module: as in its metadata.
        state: its state; `reason` explains it in one line if it is not ok.
        error: the exception that it raised, if any.
        components: its components, in order of registration.
        remarks: warnings about deprecated hooks and arguments that it implements.
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
        """Whether its hooks are called and its components can be selected, at least by their full names."""
        return self.state in {State.OK, State.HEAVY} or bool(self.components)

    @property
    def component_names(self) -> dict[str, list[str]]:
        """The names of its components by kind."""
        names: dict[str, list[str]] = defaultdict(list)
        for component in self.components:
            names[component.kind].append(component.name)
        return dict(names)

    def as_json(self) -> dict[str, Any]:
        """Return its entry in the JSON of `rlcore list-plugins` and of `rlcore doctor`."""
        texts = {"entry_point": self.name, "module": self.module, "state": str(self.state), "reason": self.reason}
        named = {"components": self.component_names, "remarks": list(self.remarks)}
        return {"dist": self.dist, "version": self.version, **texts, **named}

    def __str__(self) -> str:
        return f"{self.dist} {self.version}"


@attrs.frozen(eq=False)
class Discovery:
    """All plugins, the hooks of the loaded ones, and notes on environment variables and duplicate dists."""

    plugins: tuple[Plugin, ...]
    hooks: pluggy.PluginManager
    notes: tuple[str, ...]

    @property
    def components(self) -> list[Component[Any]]:
        """All registered components."""
        return [component for plugin in self.plugins for component in plugin.components]

    @property
    def complaints(self) -> list[str]:
        """Every plugin that is neither ok nor disabled, with the reason, and all notes."""
        faulty = (plugin for plugin in self.plugins if plugin.state not in {State.OK, State.DISABLED})
        return [*(f"{plugin} is {plugin.state}: {plugin.reason}" for plugin in faulty), *self.notes]


def discover(
    environ: Mapping[str, str] | None = None, path: Sequence[str] | None = None, specs: Any = hookspecs
) -> Discovery:
    """Load every plugin installed on `path`; what a plugin raises becomes its state and reason.

    Args:
        environ: environment variables; those of the process if omitted.
        path: folders to search for metadata; `sys.path` without the working folder if omitted.
        specs: module of hook specifications.
    """
    environ = os.environ if environ is None else environ
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(specs)
    if is_on(environ, "RLCORE_TRACE_PLUGINS"):
        hooks.add_hookcall_monitoring(before=_trace_call, after=lambda *_: None)
    installed = find_plugins(path)
    plugins: list[Plugin] = []
    for candidate in installed.plugins:
        with preserve_process_state():
            plugins.append(_load(candidate, hooks, environ, plugins))  # `plugins` holds the earlier ones
    known = {name for candidate in installed.plugins for name in candidate.names}
    notes = (*installed.notes, *remark_on_switches(known, environ))
    return Discovery(tuple(_mark_conflicts(plugins)), hooks, notes)


def _trace_call(hook: str, implementations: Sequence[pluggy.HookImpl], _: Mapping[str, Any]) -> None:
    if implementations:
        write(f"rlcore: {hook}: {', '.join(each.plugin_name for each in implementations)}", sys.stderr)


def _load(
    installed: InstalledPlugin, hooks: pluggy.PluginManager, environ: Mapping[str, str], earlier: Sequence[Plugin]
) -> Plugin:
    """Load one plugin; any exception becomes its state and reason."""
    plugin = Plugin(installed.dist, installed.version, installed.name, installed.module)
    is_traced = is_on(environ, "RLCORE_TRACE_PLUGINS")
    if is_traced:  # also before loading, because an import may hang or end the process
        write(f"rlcore: {plugin}: {plugin.module}: loading", sys.stderr)
    start = time.perf_counter()
    try:
        check_disabled(installed, environ)
        if installed.problem:
            raise Refused(State.BROKEN, installed.problem)
        check_requirements(installed)
        before = set(sys.modules)
        module = _import(installed.module)
        heavy = heavy_imports(installed.module.partition(":")[0], before)
        check_hooks(module, hooks)
        plugin = _register(module, plugin, hooks, earlier)
        if heavy:
            plugin = attrs.evolve(plugin, state=State.HEAVY, reason=_describe_heavy(heavy))
    except KeyboardInterrupt:
        raise
    except Refused as refused:
        plugin = attrs.evolve(plugin, state=refused.state, reason=refused.reason, error=refused)
    except pluggy.PluginValidationError as error:
        first, *_, last = str(error).splitlines()  # the hook; its definition; the error
        reason = f"{first}: {last}"
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    except BaseException as error:  # noqa: BLE001  # a third-party module may raise anything, SystemExit included
        reason = describe_error(error)
        reason = reason.removeprefix("PluginError: ") if isinstance(error, PluginError) else reason
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    if is_traced:
        outcome = ", ".join(component.name for component in plugin.components) or plugin.reason or "nothing"
        duration_ms = 1e3 * (time.perf_counter() - start)
        write(f"rlcore: {plugin}: {plugin.module}: {plugin.state} in {duration_ms:.1f} ms: {outcome}", sys.stderr)
    return plugin


def _describe_heavy(heavy: Sequence[str]) -> str:
    return (
        f"imports {' and '.join(heavy)} when it is loaded, which slows down every command: import it in functions, or "
        "register targets as 'module:attribute'"
    )


def _import(reference: str) -> Any:
    module, _, attribute = reference.partition(":")
    plugin: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    return plugin


def _register(module: Any, plugin: Plugin, hooks: pluggy.PluginManager, earlier: Sequence[Plugin]) -> Plugin:
    """Call the register hooks of one plugin; if any of them fails, discard its components and all of its hooks."""
    if hooks.is_registered(module):
        raise Refused(State.CONFLICT, f"{plugin.module} is already loaded, for {hooks.get_name(module)}")
    components: list[Component[Any]] = []
    try:
        with warnings.catch_warnings(record=True) as remarks:  # pluggy warns here of deprecated hooks
            warnings.simplefilter("always")
            hooks.register(module, name=f"{plugin.dist}:{plugin.name}")
        others = [other for other in hooks.get_plugins() if other is not module]
        for kind in KINDS:
            call = hooks.subset_hook_caller(f"register_{kind}", others)
            call(register=partial(_collect, components, kind, plugin))
        _check_taken(components, earlier)
    except BaseException:
        if hooks.is_registered(module):
            hooks.unregister(module)
        raise
    texts = tuple(dict.fromkeys(str(remark.message) for remark in remarks))
    return attrs.evolve(plugin, components=tuple(components), remarks=texts)


def _check_taken(components: Sequence[Component[Any]], earlier: Sequence[Plugin]) -> None:
    """Refuse a full name that another entry point of the same dist has already registered."""
    taken = {(component.kind, component.qualified): plugin for plugin in earlier for component in plugin.components}
    for component in components:
        owner = taken.get((component.kind, component.qualified))
        if owner:
            what = f"{KINDS[component.kind]} '{component.name}'"
            raise Refused(State.CONFLICT, f"the entry point '{owner.name}' of {owner} already registers {what}")


def _collect(
    components: list[Component[Any]],
    kind: str,
    plugin: Plugin,
    name: str,
    target: Any,
    *,
    config: Any = None,
    summary: str = "",
    **facts: Any,
) -> None:
    component: Component[Any] = Component(
        kind=kind,
        name=name,
        dist=plugin.dist,
        version=plugin.version,
        summary=summary,
        reference=target,
        config_reference=config,
        facts={fact: value for fact, value in facts.items() if value is not None},
    )
    check_component(component)
    if any(other.kind == kind and other.name == name for other in components):
        raise PluginError(f"it registers {KINDS[kind]} '{name}' twice")
    components.append(component)


def _mark_conflicts(plugins: Sequence[Plugin]) -> list[Plugin]:
    """Set the state of all plugins that register a name which another plugin also registers."""
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
                reasons.append(f"{names} also registers {what}: use '{component.qualified}'")
        if reasons:
            reason = "; ".join([*reasons, *filter(None, [plugin.reason])])  # for example, that it is heavy
            plugin = attrs.evolve(plugin, state=State.CONFLICT, reason=reason)  # noqa: PLW2901  the same plugin
        marked.append(plugin)
    return marked
