"""Say what stands against a plugin: switches, its requirement on rlcore, its hooks, and what its import drags in."""

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
"""What takes seconds to import, and no plugin may import when it is loaded itself."""


class State(StrEnum):
    """How a plugin is."""

    OK = "ok"
    HEAVY = "heavy"
    DISABLED = "disabled"
    INCOMPATIBLE = "incompatible"
    BROKEN = "broken"
    CONFLICT = "conflict"


class Refused(Exception):
    """Carry a state and a reason out of the steps of loading."""

    def __init__(self, state: State, reason: str) -> None:
        super().__init__(reason)
        self.state, self.reason = state, reason


def check_disabled(found: InstalledPlugin, environ: Mapping[str, str]) -> None:
    """Refuse what the switches or the run's configuration leave out."""
    reason = disabled_reason(found.names, environ)
    if found.dist != CORE and reason:
        raise Refused(State.DISABLED, reason)


def check_requirements(found: InstalledPlugin) -> None:
    """Refuse what its metadata says is for another rlcore."""
    from rlcore._version import __version__

    if found.dist == CORE:
        return
    for line in found.requires:
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
    """Refuse hooks that could never be called (misspelt, undecorated, with arguments no hook has), and no hooks."""
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
                State.BROKEN, f"its entry point names the class {plugin.__name__}; name a module, or an object"
            )
        implemented += 1
        hook = options.get("specname") or name
        if hook in known:
            _check_arguments(getattr(plugin, name), hook, getattr(hooks.hook, hook).spec.argnames)
        elif not options.get("optionalhook"):
            near = difflib.get_close_matches(hook, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the hooks are {', '.join(known)}"
            raise Refused(State.BROKEN, f"rlcore has no hook '{hook}'; {hint}")
    if not implemented:
        raise Refused(State.BROKEN, "it implements no hook: its entry point must name what does, as 'acme.plugin'")


def _check_arguments(implementation: Any, hook: str, known: Collection[str]) -> None:
    """Refuse arguments that a hook does not have, or no longer has; pluggy would not say which ones it has."""
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
    """List what of `HEAVY` the import of a plugin's module brought, or found there and holds.

    A process that has torch already sees it in what the plugin's own modules hold, and not where they hold nothing of
    it: the command line, which starts without, sees it always.

    Args:
        module: name of the plugin's module, which is imported.
        before: names of all modules that were imported before it was.
    """
    now = dict(sys.modules)
    brought = {name for name in HEAVY if name in now and name not in before}
    package = module.partition(".")[0]
    own = {module, *(name for name in now.keys() - set(before) if name.partition(".")[0] == package)}
    heavy = {id(loaded): top for name, loaded in now.items() if (top := name.partition(".")[0]) in HEAVY}
    for name in own:
        # A module of another type may be a lazy one, which imports what it stands for when it is looked into.
        if type(now.get(name)) is ModuleType:
            brought |= {held for value in list(vars(now[name]).values()) if (held := _home(value, heavy))}
    return [name for name in HEAVY if name in brought]


def _home(value: Any, heavy: Mapping[int, str]) -> str:
    """Name the heavy package that a global of a plugin is, or was defined in; nothing if it is none's."""
    # isinstance would ask the value for its class, and a lazy module imports itself when it is asked for anything.
    if issubclass(type(value), type | FunctionType):
        top = str(value.__module__).partition(".")[0]
        return top if top in HEAVY else ""
    return heavy.get(id(value), "")


@contextmanager
def preserve_process_state() -> Iterator[None]:
    """Put back what a plugin took from `sys.path`, the working folder, and stdout, which `--json` needs for itself.

    What it added to `sys.path` stays, for its own imports may need it.
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
