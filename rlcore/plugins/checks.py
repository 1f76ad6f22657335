"""The checks of a plugin: is it enabled and compatible, are its hooks valid, and is its import light?"""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pluggy
from packaging.requirements import Requirement

from rlcore.components import normalise
from rlcore.plugins.metadata import CORE, InstalledPlugin
from rlcore.plugins.switches import disabled_reason

HEAVY = ("torch", "transformers", "datasets", "accelerate")
"""Packages that take seconds to import, which a plugin module must not import at load time."""


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


def check_requirements(plugin: InstalledPlugin) -> None:
    """Refuse a plugin whose metadata requires another version of rlcore."""
    from rlcore._version import __version__

    if plugin.dist == CORE:
        return
    for line in plugin.requires:
        try:
            requirement = Requirement(line)
        except ValueError as error:
            raise Refused(State.BROKEN, f"its metadata has an unreadable requirement {line!r}") from error
        if normalise(requirement.name) != CORE or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})
        ):
            continue
        if not requirement.specifier.contains(__version__, prereleases=True):
            raise Refused(State.INCOMPATIBLE, f"needs rlcore{requirement.specifier}, this is rlcore {__version__}")


def check_hooks(plugin: Any, hooks: pluggy.PluginManager) -> None:
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
    now = dict(sys.modules)
    imported = {name for name in HEAVY if name in now and name not in before}
    package = module.partition(".")[0]
    own = {module, *(name for name in now.keys() - set(before) if name.partition(".")[0] == package)}
    heavy = {id(loaded): top for name, loaded in now.items() if (top := name.partition(".")[0]) in HEAVY}
    for name in own:
        # A module of another type may be lazy: reading its attributes could import its target.
        if type(now.get(name)) is ModuleType:
            imported |= {origin for value in list(vars(now[name]).values()) if (origin := _origin(value, heavy))}
    return [name for name in HEAVY if name in imported]


def _origin(value: Any, heavy: Mapping[int, str]) -> str:
    """Return the heavy package that a global is or comes from, or an empty string."""
    # isinstance would read the attribute __class__, which makes a lazy module import its target.
    if issubclass(type(value), type | FunctionType):
        top = str(value.__module__).partition(".")[0]
        return top if top in HEAVY else ""
    return heavy.get(id(value), "")


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Restore entries of `sys.path` and the working folder, and redirect stdout, which `--json` uses, to stderr.

    Entries that a plugin adds to `sys.path` stay, because its later imports may need them.
    """
    path, folder = list(sys.path), Path.cwd()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if any(entry not in sys.path for entry in path):
            sys.path[:] = [*(entry for entry in sys.path if entry not in path), *path]
        if not folder.samefile(os.curdir):
            os.chdir(folder)
