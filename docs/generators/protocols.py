"""Generate a page for every protocol from its methods, their docstrings and its example."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import rlcore.protocols
import rlcore.types
from generators.docstrings import Undocumented, fields, outcome, read, read_function, signature, table
from generators.examples import EXAMPLES, example

INTRODUCTION = """\
# Protocols

Generated from `rlcore/protocols/` by `make docs`.

The interfaces of components. None of them is a base class: any class or function with these attributes and methods
works, and `rlcore_testing` checks it.

| protocol | meaning |
|---|---|
"""
BESIDE = {
    "Decoder": ("DecodeStep", "DecoderRequest"), "Environment": ("Turn", "Step"), "Head": ("Trunk",),
    "RolloutStore": ("Trajectories",),
}  # fmt: skip
"""Classes without a page of their own, described on the page of the protocol that they belong to."""
SHOWN_BY = dict.fromkeys(("ParallelFiles", "Processes", "StagedFiles", "Uploader"), "register_services")
"""Protocol → the hook whose example shows it."""


def protocols_of(module: Any = rlcore.protocols) -> dict[str, type]:
    """Return the protocols of a package by name, file by file, in the order of their definition."""
    known = {name: getattr(module, name) for name in module.__all__}
    found = {name: one for name, one in known.items() if getattr(one, "_is_protocol", False)}
    return dict(sorted(found.items(), key=lambda pair: (pair[1].__module__, _line(pair[1]))))


def pages(protocols: dict[str, type] | None = None, examples: Path = EXAMPLES / "protocols") -> dict[str, str]:
    """Return a mapping from the paths of the pages in the folder `protocols` to their texts.

    Raises:
        Undocumented: a protocol has no example, or a docstring does not describe its method's arguments.
    """
    protocols = protocols_of() if protocols is None else protocols
    rows = [f"| [`{name}`]({name}.md) | {read(one, name).lead} |" for name, one in protocols.items()]
    written = {f"protocols/{name}.md": _page(name, one, examples) for name, one in protocols.items()}
    return {"protocols/index.md": INTRODUCTION + "\n".join([*rows, ""]), **written}


def methods(protocol: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the methods and properties of a protocol, in the order of their definition."""
    for name, value in vars(protocol).items():
        if inspect.isfunction(value) and (not name.startswith("_") or name in {"__call__", "__getitem__", "__len__"}):
            if value.__qualname__.startswith(protocol.__name__ + "."):  # skip methods that typing.Protocol adds
                yield name, value
        elif isinstance(value, property | functools.cached_property):
            yield name, value.fget if isinstance(value, property) else value.func  # type: ignore[misc]


def _page(name: str, protocol: type, examples: Path) -> str:
    home = protocol.__module__.replace(".", "/") + ".py"
    lines = [f"# {name}", "", f"Generated from `{home}` by `make docs`; [all protocols](index.md).", ""]
    lines += [read(protocol, name).text, "", *_bases(protocol), *_attributes(protocol)]
    for method, function in methods(protocol):
        where = f"{name}.{method}"
        docstring = read_function(function, where)
        shown = {"__call__": _snake_case(name), "__len__": "len"}.get(method, method)
        written = signature(function, shown)
        if isinstance(vars(protocol)[method], property):
            written = f"{method}: {inspect.signature(function).return_annotation}"
        lines += [f"## {method.strip('_')}", "", "```text", written, "```", "", docstring.text, ""]
        lines += [*table(function, docstring), *outcome(docstring)]
    for beside in BESIDE.get(name, ()):
        cls = getattr(rlcore.protocols, beside, None) or getattr(rlcore.types, beside)
        lines += fields(cls, beside)
    if name in SHOWN_BY:
        shown = f"[{SHOWN_BY[name]}](../hooks/{SHOWN_BY[name]}.md)"
        return "\n".join([*lines, "## Example", "", f"The page of the hook {shown} has one.", ""])
    return "\n".join([*lines, *example(name, examples)])


def _bases(protocol: type) -> list[str]:
    """Return sentences with links to the protocols that `protocol` extends."""
    names = [base.__name__ for base in protocol.__bases__ if base not in (Protocol, object)]
    return [f"It also has everything that a [`{name}`]({name}.md) has.\n" for name in names]


def _attributes(protocol: type) -> list[str]:
    """Return the table of a protocol's attributes; their meanings are the docstrings below them in the source."""
    annotations = inspect.get_annotations(protocol)
    if not annotations:
        return []
    source = inspect.getsource(protocol).splitlines()
    lines = ["| attribute | type | meaning |", "|---|---|---|"]
    for name, kind in annotations.items():
        at = next(i for i, line in enumerate(source) if line.strip().startswith(f"{name}:"))
        below = source[at + 1].strip()
        if not below.startswith('"""'):
            raise Undocumented(f"{protocol.__name__}.{name}: it has no docstring below it")
        lines.append(f"| `{name}` | `{kind}` | {below.strip(chr(34)).replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _line(protocol: type) -> int:
    return inspect.getsourcelines(protocol)[1]
