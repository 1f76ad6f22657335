"""Docstrings and signatures, with a check that each docstring describes exactly the arguments of its function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import attrs

WIDTH = 100
_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes):$")
_ITEM = re.compile(r"^ {4}([\w, ]+): (.*)$")


class Undocumented(Exception):
    """Raised if a page cannot be generated, because docstring or examples do not match the code."""


@attrs.frozen
class Docstring:
    """Parts of a docstring: its text, and its descriptions of arguments, results and errors."""

    text: str
    arguments: dict[str, str]
    attributes: dict[str, str]
    returns: str
    raises: dict[str, str]

    @property
    def lead(self) -> str:
        """Return the first line, without the full stop."""
        return self.text.partition("\n")[0].rstrip(".")


def read(documented: Any, where: str) -> Docstring:
    """Parse the docstring of a function or class."""
    written = documented.__doc__
    if not written:
        raise Undocumented(f"{where} has no docstring")
    sections: dict[str, list[str]] = {"": []}
    section = ""
    for line in inspect.cleandoc(written).splitlines():
        if found := _SECTION.match(line):
            section = found[1]
            sections[section] = []
        else:
            sections[section].append(line)
    returns = " ".join(line.strip() for line in sections.get("Returns", ())).strip()
    named = [_items(sections.get(name, [])) for name in ("Args", "Attributes", "Raises")]
    return Docstring("\n".join(sections[""]).strip(), named[0], named[1], returns, named[2])


def read_function(function: Callable[..., Any], where: str) -> Docstring:
    """Parse the docstring of a function.

    Raises:
        Undocumented: the docstring does not describe exactly the function's arguments, in their order.
    """
    docstring = read(function, where)
    taken = list(parameters(function))
    if list(docstring.arguments) != taken:
        raise Undocumented(
            f"{where} takes ({', '.join(taken)}), and its docstring describes ({', '.join(docstring.arguments)})"
        )
    return docstring


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function, without self."""
    return {name: one for name, one in inspect.signature(function).parameters.items() if name != "self"}


def signature(function: Callable[..., Any], name: str) -> str:
    """Return a signature as in the code; if it is long, with one argument per line."""
    before: list[str] = []
    for one in parameters(function).values():
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in before):
            before.append("*")
        shown = one.replace(default=_Bare("...")) if one.default is ... else one
        before.append(str(shown.replace(annotation=_Bare(one.annotation))))
    returns = inspect.signature(function).return_annotation
    line = f"{name}({', '.join(before)}) -> {returns}"
    if len(line) > WIDTH:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in before), f") -> {returns}"])
    return line


def table(function: Callable[..., Any], docstring: Docstring) -> list[str]:
    """Return the table of a function's arguments."""
    if not docstring.arguments:
        return []
    lines = ["| argument | type | meaning |", "|---|---|---|"]
    for name, one in parameters(function).items():
        kind = str(one.annotation).replace("|", "\\|")
        lines.append(f"| `{name}` | `{kind}` | {docstring.arguments[name].replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def fields(cls: Any, name: str) -> list[str]:
    """Return a section with the text and the table of the fields of an attrs class.

    Raises:
        Undocumented: the docstring does not describe exactly the fields, in their order.
    """
    described = read(cls, name)
    if list(described.attributes) != [field.name for field in attrs.fields(cls)]:
        raise Undocumented(f"{name}: its docstring does not describe its fields")
    lines = [f"## {name}", "", described.text, "", "| field | meaning |", "|---|---|"]
    return [*lines, *(f"| `{field}` | {meaning} |" for field, meaning in described.attributes.items()), ""]


def outcome(docstring: Docstring) -> list[str]:
    """Return the lines on the return value and exceptions of a function, if its docstring describes them."""
    lines = [f"Returns: {docstring.returns}", ""] if docstring.returns else []
    return lines + [line for name, when in docstring.raises.items() for line in (f"Raises `{name}`: {when}", "")]


@attrs.frozen(repr=False)
class _Bare:
    """Text whose repr has no quotes, for annotations and for `...` as a default."""

    text: str

    def __repr__(self) -> str:
        return str(self.text)


def _items(lines: list[str]) -> dict[str, str]:
    items: dict[str, str] = {}
    for line in lines:
        if found := _ITEM.match(line):
            name = found[1]
            items[name] = found[2]
        elif line.strip():
            items[name] += " " + line.strip()
    return items
