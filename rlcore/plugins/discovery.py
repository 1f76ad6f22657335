"""The loading of all installed plugins, one at a time, so that a broken one does not affect the others.

A plugin is *ok*, *heavy* (it works, but slows down every command, because it imports torch or the like, or takes
seconds), *disabled* (by an environment variable or the configuration), *incompatible* (its metadata requires another
rlcore, so that it is not loaded, or another version of something else), *broken* (its import or a hook raised, or a
hook is misspelt), or in *conflict* (another dist registers one of its names; the full names work).

Also in this file: the checks of a plugin: is it enabled and compatible, are its hooks valid, and is its import light?
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, get_args

import attrs
import pluggy
from packaging.requirements import Requirement

from rlcore import hookspecs
from rlcore.components import KINDS, Component, check_component, describe_error, normalise
from rlcore.errors import PluginError, RLCoreError
from rlcore.hookspecs import NO_SERVICES, Order, Services
from rlcore.plugins.metadata import (
    CORE,
    InstalledPlugin,
    disabled_reason,
    find_plugins,
    installed_version,
    is_on,
    remark_on_switches,
)
from rlcore.safe_text import write

__all__ = ["Discovery", "Plugin", "State", "discover"]

HEAVY = ("torch", "transformers", "datasets", "accelerate")
"""Packages that take seconds to import, which a plugin module must not import at load time."""
SLOW_S = 3.0
"""Seconds from which on the import of a plugin module is named."""


class State(StrEnum):
    """The state of a plugin; `rlcore.plugins.discovery` defines each."""

    OK = "ok"
    HEAVY = "heavy"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    CONFLICT = "conflict"


class Refused(Exception):
    """A check failed: the state and reason of the plugin."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


def check_disabled(plugin: InstalledPlugin, environ: Mapping[str, str]) -> None:
    """Refuse a plugin that environment variables or the configuration disable."""
    reason = disabled_reason(plugin.names, environ)
    if plugin.dist != CORE and reason:
        raise Refused(State.DISABLED, reason)


def check_requirements(plugin: InstalledPlugin) -> str:
    """Refuse a plugin whose metadata requires another version of rlcore; return which other requirement is not met."""
    from rlcore._version import __version__

    unmet = ""
    for line in plugin.requires if plugin.dist != CORE else ():
        try:
            requirement = Requirement(line)
        except ValueError as error:
            raise Refused(State.BROKEN, f"its metadata has an unreadable requirement {line!r}") from error
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        name, wanted = normalise(requirement.name), requirement.specifier
        version = __version__ if name == CORE else installed_version(name)
        if version is not None and wanted.contains(version, prereleases=True):
            continue
        if name == CORE:
            raise Refused(State.INCOMPATIBLE, f"needs rlcore{wanted}, this is rlcore {__version__}")
        found = "it is not installed" if version is None else f"{version} is installed"
        unmet = unmet or f"needs {requirement.name}{wanted}, and {found}: pip install '{requirement.name}{wanted}'"
    return unmet


def check_hooks(plugin: object, hooks: pluggy.PluginManager) -> None:
    """Refuse a plugin without hooks, or with hooks that are misspelt, undecorated or have unknown arguments."""
    known = [name for name in vars(hooks.hook) if not name.startswith("_")]
    implemented = 0
    for name in dir(plugin):
        options = hooks.parse_hookimpl_opts(plugin, name)
        if options is None:
            if name in known and callable(getattr(plugin, name)):
                raise Refused(State.BROKEN, f"{name} is not decorated with @rlcore.hookimpl")
            continue
        if isinstance(plugin, type):
            raise Refused(
                State.BROKEN, f"its entry point names the class {plugin.__name__}; it must name a module or an object"
            )
        implemented += 1
        hook = options.get("specname") or name
        if hook in known:
            check_arguments(getattr(plugin, name), hook, getattr(hooks.hook, hook).spec.argnames)
        elif not options.get("optionalhook"):
            near = difflib.get_close_matches(hook, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the hooks are {', '.join(known)}"
            raise Refused(State.BROKEN, f"rlcore has no hook '{hook}'; {hint}")
    if not implemented:
        raise Refused(State.BROKEN, "it implements no hook; its entry point must name a module that does")


def check_arguments(implementation: Any, hook: str, known: Collection[str]) -> None:
    """Refuse arguments that the hook does not have; pluggy's own error does not list the valid ones."""
    takes = f"it takes {', '.join(known)}"
    for name, parameter in inspect.signature(implementation).parameters.items():
        if parameter.default is not parameter.empty or parameter.kind in {
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        }:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY:
            raise Refused(State.BROKEN, f"hook {hook}: '{name}' is keyword-only, and hooks are called by position")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean '{near[0]}'?)" if near else ""
            raise Refused(State.BROKEN, f"hook {hook} has no argument '{name}'{hint}; {takes}")


def heavy_imports(module: str, before: Collection[str]) -> list[str]:
    """Return the packages of `HEAVY` that a plugin module imports at load time.

    If a package was already imported, it is found only when the plugin's modules have a global from it. The command
    line starts without these packages and finds all imports.

    Args:
        module: name of the plugin's module, which has been imported.
        before: names of all modules that were imported before it.
    """
    new = [name for name in list(sys.modules) if name not in before]
    imported = set(HEAVY).intersection(new)
    package = module.partition(".")[0]
    for name in {module, *(name for name in new if name.partition(".")[0] == package)}:
        own = sys.modules.get(name)
        # A module of another type may be lazy: reading its attributes could import its target.
        if type(own) is ModuleType:
            imported |= {_origin(value) for value in list(vars(own).values())}
    return [name for name in HEAVY if name in imported]


def _origin(value: object) -> str:
    """Return the name of the package that a global is or comes from, or an empty string."""
    # isinstance would read the attribute __class__, which makes a lazy module import its target.
    if issubclass(type(value), type | FunctionType):
        return str(value.__module__).partition(".")[0]
    if issubclass(type(value), ModuleType):
        name = object.__getattribute__(value, "__dict__").get("__name__")
        if sys.modules.get(name) is value:  # a lazy module need not have been imported
            return str(name).partition(".")[0]
    return ""


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore entries of `sys.path` and the working folder, and redirect stdout, which `--json` uses, to stderr.

    Entries that a plugin adds to `sys.path` stay, because its later imports may need them.
    """
    path, folder = list(sys.path), Path.cwd()
    try:
        with _descriptor_1_to_stderr(), redirect_stdout(sys.stderr):
            yield
    finally:
        if any(entry not in sys.path for entry in path):
            sys.path[:] = [*(entry for entry in sys.path if entry not in path), *path]
        if not folder.samefile(os.curdir):
            os.chdir(folder)


@contextmanager
def _descriptor_1_to_stderr() -> Iterator[None]:
    """Redirect what compiled code and child processes write to stdout, which they know by its number."""
    try:
        kept = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # one of them is closed
        yield
        return
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@attrs.frozen
class Offer:
    """One call of a plugin's `register_services`."""

    services: Services
    options: tuple[str, ...]
    order: Order


@attrs.frozen(eq=False)
class Plugin:
    """A plugin (one entry point), after the attempt to load it.

    Attributes:
        dist, version, name, module: as in its metadata.
        state: its state; `reason` explains it in one line if it is not ok.
        error: the exception that it raised, if any.
        components: its components, in order of registration.
        offers: the services and options that it implements.
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
    offers: tuple[Offer, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def options(self) -> set[str]:
        """The options of the core that it implements."""
        return {option for offer in self.offers for option in offer.options}

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
    """All plugins, the hooks of the loaded ones, and notes on environment variables and duplicate dists.

    `services` calls those of all plugins, one after another.
    """

    plugins: tuple[Plugin, ...]
    hooks: pluggy.PluginManager
    notes: tuple[str, ...]
    services: Services = NO_SERVICES

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
    return Discovery(tuple(_mark_conflicts(plugins)), hooks, notes, combine(plugins))


def combine(plugins: Sequence[Plugin]) -> Services:
    """Return services each of which returns the first result of the plugins' that is not None.

    They raise the RLCoreError that a plugin's raises, and a PluginError where it raises anything else.
    """
    offers = [(f"{plugin.dist}:{plugin.name}", offer) for plugin in plugins for offer in plugin.offers]
    ordered = [
        *(each for each in offers[::-1] if each[1].order == "first"),
        *(each for each in offers[::-1] if not each[1].order),
        *(each for each in offers if each[1].order == "last"),
    ]
    calls: dict[str, list[tuple[str, Callable[..., object]]]] = defaultdict(list)
    for plugin, offer in ordered:
        for name, function in attrs.asdict(offer.services, recurse=False).items():
            if function is not hookspecs.no_result:
                calls[name].append((plugin, function))
    return Services(**{name: partial(_first_result, name, functions) for name, functions in calls.items()})


def _first_result(name: str, functions: Sequence[tuple[str, Callable[..., object]]], *arguments: object) -> Any:
    for plugin, function in functions:
        try:
            found = function(*arguments)
        except RLCoreError:
            raise
        except Exception as error:
            raise PluginError(f"{plugin}: {name} raised {describe_error(error)}") from error
        if found is not None:
            return found
    return None


def _trace_call(hook: str, implementations: Sequence[pluggy.HookImpl], _: Mapping[str, object]) -> None:
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
    start, unmet = time.perf_counter(), ""
    try:
        check_disabled(installed, environ)
        if installed.problem:
            raise Refused(State.BROKEN, installed.problem)
        unmet = check_requirements(installed)
        before = set(sys.modules)
        module = _import(installed.module)
        heavy = heavy_imports(installed.module.partition(":")[0], before)
        check_hooks(module, hooks)
        plugin = _register(module, plugin, hooks, earlier)
        slow = _describe_slow(heavy, time.perf_counter() - start)
        if unmet or slow:
            state = State.INCOMPATIBLE if unmet else State.HEAVY
            plugin = attrs.evolve(plugin, state=state, reason=unmet or slow)
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
        reason = f"{reason}; it {unmet}" if unmet else reason
        plugin = attrs.evolve(plugin, state=State.BROKEN, reason=reason, error=error)
    if is_traced:
        outcome = ", ".join(component.name for component in plugin.components) or plugin.reason or "nothing"
        duration_ms = 1e3 * (time.perf_counter() - start)
        write(f"rlcore: {plugin}: {plugin.module}: {plugin.state} in {duration_ms:.1f} ms: {outcome}", sys.stderr)
    return plugin


def _describe_slow(heavy: Sequence[str], loaded_s: float) -> str:
    """Return how loading a plugin slows down every command; an empty string if it does not."""
    if heavy:
        cause, moved = f"imports {' and '.join(heavy)} when it is loaded", "import it"
    elif loaded_s > SLOW_S:
        cause, moved = f"takes {loaded_s:.1f} s to be loaded", "import what takes long"
    else:
        return ""
    return f"{cause}, which slows down every command: {moved} in functions, or register targets as 'module:attribute'"


def _import(reference: str) -> object:
    module, _, attribute = reference.partition(":")
    plugin: object = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        plugin = getattr(plugin, part)
    return plugin


def _register(module: object, plugin: Plugin, hooks: pluggy.PluginManager, earlier: Sequence[Plugin]) -> Plugin:
    """Call the register hooks of one plugin; if any of them fails, discard its components and all of its hooks."""
    if hooks.is_registered(module):
        raise Refused(State.CONFLICT, f"{plugin.module} is already loaded, for {hooks.get_name(module)}")
    components: list[Component[object]] = []
    offers: list[Offer] = []

    def offer(services: Services = NO_SERVICES, *, options: Sequence[str] = (), order: Order = "") -> None:
        if not isinstance(services, Services):
            raise PluginError(f"it registers {services!r} as services, which must be rlcore.hookspecs.Services(...)")
        if order not in get_args(Order):
            raise PluginError(f"it registers services with order={order!r}, which must be 'first', '' or 'last'")
        offers.append(Offer(services, tuple(options), order))

    try:
        with warnings.catch_warnings(record=True) as remarks:  # pluggy warns here of deprecated hooks
            warnings.simplefilter("always")
            hooks.register(module, name=f"{plugin.dist}:{plugin.name}")
        others = [other for other in hooks.get_plugins() if other is not module]
        for kind in KINDS:
            call = hooks.subset_hook_caller(f"register_{kind}", others)
            call(register=partial(_collect, components, kind, plugin))
        hooks.subset_hook_caller("register_services", others)(register=offer)
        _check_taken(components, earlier)
    except BaseException:
        if hooks.is_registered(module):
            hooks.unregister(module)
        raise
    texts = tuple(dict.fromkeys(str(remark.message) for remark in remarks))
    return attrs.evolve(plugin, components=tuple(components), offers=tuple(offers), remarks=texts)


def _check_taken(components: Sequence[Component[object]], earlier: Sequence[Plugin]) -> None:
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
    target: object,
    *,
    config: object = None,
    summary: str = "",
    **facts: object,
) -> None:
    component: Component[object] = Component(
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
