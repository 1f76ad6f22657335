"""Probes of laws about dists and options; each function is called in a new process.

Also in this file: the objects that entry points name, and the hooks that these implement.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import logging
import os
import pickle
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import attrs
import pluggy

from rlcore.components import Component
from rlcore.hookspecs import PROJECT
from rlcore.plugins.discovery import HEAVY


def watch_import(modules: Sequence[str]) -> dict[str, object]:
    """Import modules; return the time, the heavy modules that were imported, and the changes to the process."""
    import rlcore.config  # every plugin may import these, so they do not count
    import rlcore.plugins.discovery

    del rlcore
    changes: dict[str, str] = {}
    with _watched(changes):
        start = _time_s()
        for module in modules:
            importlib.import_module(module)
        spent = _time_s() - start
    return {"time_s": spent, "heavy": _heavy(), "changes": changes}


def _time_s() -> float:
    """Return the time without that in which this thread waited for a core of a busy machine, which Linux counts."""
    counts = Path("/proc/thread-self/schedstat")
    waited_ns = int(counts.read_text(encoding="ascii").split()[1]) if counts.exists() else 0
    return time.perf_counter() - waited_ns / 1e9


@contextlib.contextmanager
def _watched(changes: dict[str, str]) -> Iterator[None]:
    """Record the changes that the block makes to the process, in a temporary working folder."""
    sys.path[:] = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100  the working folder changes below
    printed, home = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        before, variables = _snapshot(), _watch_environment()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            yield
        after = _snapshot()
        os.chdir(home)
    for what, seen in after.items():
        new, lost = (
            [each for each in seen if each not in before[what]],
            [each for each in before[what] if each not in seen],
        )
        if new or lost:
            changes[what] = "; ".join(f"{how} {_few(which)}" for how, which in (("new", new), ("gone", lost)) if which)
    if variables:
        changes["the environment"] = f"it sets {_few(variables)}"
    if printed.getvalue():
        changes["the output"] = f"it printed {printed.getvalue()[:80]!r}"


def _watch_environment() -> list[str]:
    """Return a list to which the names of variables are appended when they are set.

    Comparing the environment is not enough: this process may inherit the variables from one that imported the plugin.
    """
    names: list[str] = []

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"os.putenv", "os.unsetenv"}:
            names.append(os.fsdecode(arguments[0]))

    sys.addaudithook(record)
    return names


def _snapshot() -> dict[str, list[str]]:
    root = logging.getLogger()
    return {
        "the working folder": [str(Path.cwd())],
        "the files in the working folder": sorted(path.name for path in Path.cwd().iterdir()),
        "the random state": [f"number {hash(random.getstate())}"],
        "the root logger": [logging.getLevelName(root.level), *map(repr, root.handlers)],
        "the threads": [f"{thread.name} {thread.ident}" for thread in threading.enumerate()],
        "sys.path": list(sys.path),
    }


def _few(parts: Sequence[str]) -> str:
    return ", ".join(part[:60] for part in parts[:3]) + (", ..." if len(parts) > 3 else "")


def _heavy() -> list[str]:
    return [name for name in HEAVY if name in sys.modules]


def registered(dist: str) -> list[list[str]]:
    """Load the plugins and return kind, name, target, options and summary of each component of a dist."""
    return _registered().get(dist, [])


def seen_by_a_worker() -> dict[str, Any]:
    """Return the attributes of a `rlcore_testing.rig.worker.Spawned` that describe this process."""
    return {"registered": _registered(), "pickles": unpickled()}


def _registered() -> dict[str, list[list[str]]]:
    from rlcore.plugins.discovery import discover

    found: dict[str, list[list[str]]] = {}
    for plugin in discover().plugins:
        found.setdefault(plugin.dist, []).extend(
            [each.kind, each.name, _named(each.reference), _named(each.config_reference), each.summary]
            for each in plugin.components
        )
    return found


def _named(reference: object) -> str:
    if reference is None or isinstance(reference, str):
        return str(reference)
    return f"{getattr(reference, '__module__', '?')}:{getattr(reference, '__qualname__', type(reference).__qualname__)}"


def pickled(component: Component[object]) -> bytes:
    """Return the pickle of a component's target and its default options, None if an option has no default."""
    cls: Any = component.config_class()
    lacks = cls is None or any(field.default is attrs.NOTHING for field in attrs.fields(cls))
    return pickle.dumps((component.target(), None if lacks else cls()))


def digest(pickled: bytes) -> str:
    """Return the SHA-256 of a pickle."""
    return hashlib.sha256(pickled).hexdigest()


def unpickled() -> dict[str, str]:
    """Return the digests of the pickles (`dist:kind:name`) that this process unpickles to the component they are of."""
    from rlcore.plugins.registry import all_registries

    found = {}
    for component in all_registries().discovery.components:
        with contextlib.suppress(Exception):  # a component that fails is unpickled again, for the law on its dist
            sent = pickled(component)
            if _is_itself(pickle.loads(sent)[0], component):  # noqa: S301  pickled by this process
                found[f"{component.dist}:{component.kind}:{component.name}"] = digest(sent)
    return found


def _is_itself(target: object, component: Component[object]) -> bool:
    """Return whether an unpickled target is the component's own; other objects than classes and functions are new."""
    return not isinstance(target, type | FunctionType) or target is component.target()


def unpack(dist: str, sent: Mapping[str, str]) -> list[str]:
    """Unpickle components of another process (`kind:name` → hex) and describe those that differ from this one's."""
    from rlcore.plugins.registry import all_registries

    known = {
        f"{component.kind}:{component.name}": component
        for plugin in all_registries().discovery.plugins
        if plugin.dist == dist
        for component in plugin.components
    }
    wrong = [f"{name} is not registered in the new process" for name in sent if name not in known]
    for name, pickled in sent.items():
        try:
            target, _ = pickle.loads(bytes.fromhex(pickled))  # noqa: S301  pickled by the parent process
        except Exception as error:  # noqa: BLE001  a plugin's class may raise anything when it is rebuilt
            wrong.append(f"{name} cannot be unpickled, {type(error).__name__}: {error}")
            continue
        if name in known and not _is_itself(target, known[name]):
            wrong.append(f"{name} is another object after unpickling")
    return wrong


def read_options(reference: str) -> dict[str, Any]:
    """Import and describe a class of options as `rlcore show` does; return the heavy modules that were imported."""
    from rlcore.config.options import describe

    module, _, attribute = reference.partition(":")
    target: Any = importlib.import_module(module)
    for part in attribute.split("."):
        target = getattr(target, part)
    return {"options": len(describe(target)), "heavy": _heavy()}


def run_help(command: str) -> dict[str, Any]:
    """Run `rlcore COMMAND --help`; return its exit code, its output and the heavy modules that were imported."""
    from rlcore.cli import main

    printed = io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main([command, "--help"])
        except SystemExit as left:
            code = left.code
    return {"code": code, "printed": printed.getvalue(), "heavy": _heavy()}


def resolve(reference: str) -> Any:
    """Return the module, or its attribute, that the value of an entry point names."""
    module, _, attribute = reference.partition(":")
    found: object = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def hooks_of(reference: str) -> list[str]:
    """Return the names of the hooks that an entry point's object implements."""
    plugin, known = resolve(reference), pluggy.PluginManager(PROJECT)
    return [name for name in dir(plugin) if known.parse_hookimpl_opts(plugin, name) is not None]
