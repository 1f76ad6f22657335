"""Read docstrings and signatures, and refuse a docstring that is not about the arguments there are."""

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
    """Report a page that cannot be written, because code and docstring or examples do not fit together."""


@attrs.frozen
class Docstring:
    """Hold the parts of a docstring: its text, what it says of each argument, of results and of errors."""

    text: str
    arguments: dict[str, str]
    attributes: dict[str, str]
    returns: str
    raises: dict[str, str]

    @property
    def lead(self) -> str:
        """Return its first sentence or clause, without the full stop."""
        return self.text.partition("\n")[0].rstrip(".")


def read(documented: Any, where: str) -> Docstring:
    """Take the docstring of a function or class apart."""
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
    """Take the docstring of a function apart.

    Raises:
        Undocumented: it does not describe exactly the arguments of the function, in their order.
    """
    docstring = read(function, where)
    taken = list(parameters(function))
    if list(docstring.arguments) != taken:
        raise Undocumented(
            f"{where} takes ({', '.join(taken)}), and its docstring describes ({', '.join(docstring.arguments)})"
        )
    return docstring


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return what a function takes, without self."""
    return {name: one for name, one in inspect.signature(function).parameters.items() if name != "self"}


def signature(function: Callable[..., Any], name: str) -> str:
    """Write a signature as it stands in the code, an argument a line where it is long."""
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
    """Write what a function takes, a row for each argument."""
    if not docstring.arguments:
        return []
    lines = ["| argument | type | meaning |", "|---|---|---|"]
    for name, one in parameters(function).items():
        kind = str(one.annotation).replace("|", "\\|")
        lines.append(f"| `{name}` | `{kind}` | {docstring.arguments[name].replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def outcome(docstring: Docstring) -> list[str]:
    """Write what a function returns and raises, where its docstring says so."""
    lines = [f"Returns: {docstring.returns}", ""] if docstring.returns else []
    return lines + [line for name, when in docstring.raises.items() for line in (f"Raises `{name}`: {when}", "")]


@attrs.frozen(repr=False)
class _Bare:
    """Show text without quotes, as annotations are written, and the dots of a default that each may choose."""

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
