"""Generate a page for every hook from its signature, docstring and example."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from generators.docstrings import fields, outcome, read_function, signature, table
from generators.examples import EXAMPLES, example
from rlcore import hookspecs

Hooks = dict[str, Callable[..., Any]]
GROUPS = {
    "register_": ("Register hooks", "These hooks register components, which a configuration selects by name."),
    "on_": ("Observers", "These hooks are called during a run, on every rank, and must not change it."),
    "": (
        "Further hooks",
        "This hook wraps what other components build.",
    ),
}
INTRODUCTION = """\
# Hooks

Generated from `rlcore/hookspecs.py` by `make docs`.

A plugin implements a hook by a function with the hook's name and the decorator `@rlcore.hookimpl`, in the module of its
entry point. The function may have any subset of the hook's arguments. If rlcore has no such hook, or the hook no such
argument, the plugin's state is *broken*, and the reason suggests the nearest name.
"""
PROTOCOL = re.compile(r"`(?:rlcore\.protocols\.)([A-Z]\w+)`")


def hooks_of(module: Any = hookspecs) -> Hooks:
    """Return the hook specifications of a module by name, in the order of their definition."""
    known = {name: one for name, one in vars(module).items() if inspect.isfunction(one) and hasattr(one, "rlcore_spec")}
    return dict(sorted(known.items(), key=lambda pair: pair[1].__code__.co_firstlineno))


def pages(hooks: Hooks | None = None, examples: Path = EXAMPLES / "hooks") -> dict[str, str]:
    """Return a mapping from the paths of the pages in the folder `hooks` to their texts.

    Raises:
        Undocumented: a hook has no example, or its docstring does not describe its arguments.
    """
    hooks = hooks_of() if hooks is None else hooks
    written = {f"hooks/{name}.md": _page(name, hook, examples) for name, hook in hooks.items()}
    return {"hooks/index.md": _index(hooks), **written}


def _index(hooks: Hooks) -> str:
    lines, left = [INTRODUCTION], dict(hooks)
    for prefix, (title, lead) in GROUPS.items():
        group = [name for name in left if name.startswith(prefix)]
        lines += [f"## {title}", "", lead, "", "| hook | meaning |", "|---|---|"]
        for name in group:
            hook = left.pop(name)
            call = f"{name}({', '.join(inspect.signature(hook).parameters)})"
            lines.append(f"| [`{call}`]({name}.md) | {read_function(hook, name).lead} |")
        lines.append("")
    return "\n".join(lines)


def _page(name: str, hook: Callable[..., Any], examples: Path) -> str:
    docstring = read_function(hook, f"the hook {name}")
    text = [f"# {name}", "", "Generated from `rlcore/hookspecs.py` by `make docs`; [all hooks](index.md).", ""]
    text += ["```text", signature(hook, name), "```", "", docstring.text, ""]
    text += [*table(hook, docstring), *outcome(docstring)]
    if name == "register_services":
        text += [*fields(hookspecs.Services, "Services"), *_call(hookspecs.RegisterServices.__call__)]
    linked = PROTOCOL.sub(r"[`\1`](../protocols/\1.md)", "\n".join(text))
    return "\n".join([linked, *example(name, examples)])


def _call(register: Callable[..., Any]) -> list[str]:
    """Return the section on the callback of `register_services`, whose default is long."""
    docstring = read_function(register, "RegisterServices")
    rows = [f"| `{name}` | {meaning} |" for name, meaning in docstring.arguments.items()]
    return ["## register", "", docstring.text, "", "| argument | meaning |", "|---|---|", *rows, ""]
