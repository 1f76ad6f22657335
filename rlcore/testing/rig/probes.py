"""What laws about dists and options look at in a process started anew; every function here is called in one."""

from __future__ import annotations

import contextlib
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
from typing import Any

from rlcore.plugins.checks import HEAVY


def watch_import(modules: Sequence[str]) -> dict[str, Any]:
    """Import modules and tell how long that took, what heavy modules it brought, and what it changed besides."""
    import rlcore.config  # what every plugin may import does not count as its own
    import rlcore.plugins.discovery

    del rlcore
    changes: dict[str, str] = {}
    with _watched(changes):
        start = time.perf_counter()
        for module in modules:
            importlib.import_module(module)
        spent = time.perf_counter() - start
    return {"time_s": spent, "heavy": _heavy(), "changes": changes}


@contextlib.contextmanager
def _watched(changes: dict[str, str]) -> Iterator[None]:
    """Put down what the block changes, in a working folder of its own."""
    sys.path[:] = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100  it outlives the change of folder
    said, home = io.StringIO(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        before, put = _look_round(), _watch_environment()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
        after = _look_round()
        os.chdir(home)
    for what, seen in after.items():
        new, lost = (
            [each for each in seen if each not in before[what]],
            [each for each in before[what] if each not in seen],
        )
        if new or lost:
            changes[what] = "; ".join(f"{how} {_few(which)}" for how, which in (("new", new), ("gone", lost)) if which)
    if put:
        changes["the environment"] = f"it sets {_few(put)}"
    if said.getvalue():
        changes["what is on the screen"] = f"it printed {said.getvalue()[:80]!r}"


def _watch_environment() -> list[str]:
    """Return a list that fills as variables are set; comparing would not do, for this process inherits them set."""
    put: list[str] = []

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event in {"os.putenv", "os.unsetenv"}:
            put.append(os.fsdecode(arguments[0]))

    sys.addaudithook(hear)
    return put


def _look_round() -> dict[str, list[str]]:
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
    """Load the plugins anew and say what a dist registers: kind, name, target, options and summary of each."""
    from rlcore.plugins.discovery import discover

    return [
        [each.kind, each.name, _named(each.reference), _named(each.config_reference), each.summary]
        for plugin in discover().plugins
        if plugin.dist == dist
        for each in plugin.components
    ]


def _named(reference: Any) -> str:
    if reference is None or isinstance(reference, str):
        return str(reference)
    return f"{getattr(reference, '__module__', '?')}:{getattr(reference, '__qualname__', type(reference).__qualname__)}"


def unpack(dist: str, sent: Mapping[str, str]) -> list[str]:
    """Unpickle what another process sent, by kind and name, and say what does not arrive as this process has it."""
    from rlcore.plugins.registry import all_registries

    known = {
        f"{component.kind}:{component.name}": component
        for plugin in all_registries().discovery.plugins
        if plugin.dist == dist
        for component in plugin.components
    }
    wrong = [f"{name} is not registered there" for name in sent if name not in known]
    for name, pickled in sent.items():
        try:
            target, _ = pickle.loads(bytes.fromhex(pickled))  # noqa: S301  this program's own, a moment ago
        except Exception as error:  # noqa: BLE001  a stranger's class may raise anything when it is built again
            wrong.append(f"{name} does not arrive there, {type(error).__name__}: {error}")
            continue
        if name in known and isinstance(target, type | type(_few)) and target is not known[name].target():
            wrong.append(f"{name} arrives there as another object")
    return wrong


def read_options(reference: str) -> dict[str, Any]:
    """Do with a class of options what `rlcore show` does, and tell what heavy modules that brought."""
    from rlcore.config.describe import describe

    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return {"options": len(describe(found)), "heavy": _heavy()}


def ask_help(command: str) -> dict[str, Any]:
    """Give `rlcore COMMAND --help`; tell its exit code, what it printed and what heavy modules it brought."""
    from rlcore.cli import main

    printed = io.StringIO()
    code: Any = None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        try:
            code = main([command, "--help"])
        except SystemExit as left:
            code = left.code
    return {"code": code, "printed": printed.getvalue(), "heavy": _heavy()}
