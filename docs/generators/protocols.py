"""Generate a page for every protocol from its methods, their docstrings and its example."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import rlcore.protocols
import rlcore.types
from generators.docstrings import Undocumented, fields, outcome, read, read_function, signature, table
from generators.examples import EXAMPLES, example
from rlcore.components import Traits

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


TRAITS = {"PromptPipeline": "PipelineTraits", "SamplePipeline": "PipelineTraits"}
"""Protocol → the class of its optional members, where that has another name than the protocol."""


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
    lines += [read(protocol, name).text, "", *_bases(protocol), *_attributes(protocol), *_methods(name, protocol)]
    traits = getattr(rlcore.protocols, TRAITS.get(name, f"{name}Traits"), None)
    if traits is not None:
        lines += ["## Optional members", "", read(traits, name).text, "", *_attributes(traits)]
        lines += _methods(name, traits)
    for beside in BESIDE.get(name, ()):
        cls = getattr(rlcore.protocols, beside, None) or getattr(rlcore.types, beside)
        lines += fields(cls, beside)
    if name in SHOWN_BY:
        shown = f"[{SHOWN_BY[name]}](../hooks/{SHOWN_BY[name]}.md)"
        return "\n".join([*lines, "## Example", "", f"The page of the hook {shown} has one.", ""])
    return "\n".join([*lines, *example(name, examples)])


def _methods(name: str, protocol: type) -> list[str]:
    lines = []
    for method, function in methods(protocol):
        if isinstance(vars(protocol)[method], property) and issubclass(protocol, Traits):
            continue  # it follows from the other members
        docstring = read_function(function, f"{name}.{method}")
        shown = {"__call__": _snake_case(name), "__len__": "len"}.get(method, method)
        written = signature(function, shown)
        if isinstance(vars(protocol)[method], property):
            written = f"{method}: {inspect.signature(function).return_annotation}"
        lines += [f"## {method.strip('_')}", "", "```text", written, "```", "", docstring.text, ""]
        lines += [*table(function, docstring), *outcome(docstring)]
    return lines


def _bases(protocol: type) -> list[str]:
    """Return sentences with links to the protocols that `protocol` extends."""
    names = [base.__name__ for base in protocol.__bases__ if base not in (Protocol, object)]
    return [f"It also has everything that a [`{name}`]({name}.md) has.\n" for name in names]


def _attributes(protocol: type) -> list[str]:
    """Return the table of a protocol's attributes; their meanings are the docstrings below them in the source."""
    if not inspect.get_annotations(protocol):
        return []
    body = ast.parse(inspect.getsource(protocol)).body[0].body  # type: ignore[attr-defined]  # of a class
    has_defaults = any(isinstance(each, ast.AnnAssign) and each.value is not None for each in body)
    lines = ["| attribute | type | default | meaning |", "|---|---|---|---|"]
    if not has_defaults:
        lines = ["| attribute | type | meaning |", "|---|---|---|"]
    for each, below in pairwise([*body, ast.Pass()]):
        if not isinstance(each, ast.AnnAssign):
            continue
        name, kind, value = (ast.unparse(part) if part else "" for part in (each.target, each.annotation, each.value))
        if not (isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)):
            raise Undocumented(f"{protocol.__name__}.{name}: it has no docstring below it")
        meaning = " ".join(str(below.value.value).split())
        default = value.removeprefix("MappingProxyType(").removesuffix(")") if value.endswith("})") else value
        cells = [f"`{name}`", f"`{kind}`", *([f"`{default}`"] if has_defaults else []), meaning]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return [*lines, ""]


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _line(protocol: type) -> int:
    return inspect.getsourcelines(protocol)[1]
