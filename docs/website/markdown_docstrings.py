"""Turn the Markdown of docstrings, code in backticks, fences and indentation, into the reStructuredText of autodoc."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

NAME = re.compile(r"[A-Za-z_][\w.]*")
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
SPECIAL = re.compile(r"(?<!\w)(\*\w+\*)(?!\w)|[*|\\]|_(?=\W|$)")
LONG = 300
SECTION = re.compile(r"\w+:$")


def setup(app: Any) -> dict[str, bool]:
    """Register the translation, to run before that of the sections Args, Returns and Raises."""
    app.connect("autodoc-process-docstring", translate, priority=400)
    return {"parallel_read_safe": True}


def translate(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:  # noqa: ARG001  # as Sphinx calls it
    """Replace the lines of a docstring in place."""
    if what == "data" and lines and (inspect.getdoc(value) or "").startswith(lines[0]):
        shown = repr(value)  # the docstring is that of its type
        lines[:] = [f"= ``{shown}``"] if len(shown) < LONG and "`" not in shown else []
    else:
        lines[:] = _translated(lines)


def _translated(lines: list[str]) -> Iterator[str]:
    fenced = section = indented = False
    before = ""
    for line in lines:
        if line.lstrip().startswith("```"):
            fenced = not fenced
            if fenced:
                yield from ("", f"{line[: -len(line.lstrip())]}.. code-block:: {line.strip('` ') or 'text'}", "")
        elif fenced:
            yield f"    {line}"
        else:
            section = bool(SECTION.match(line)) or (section and (not line or line.startswith(" ")))
            indented = indented and (not line or line.startswith("    "))
            starts = not indented and not section and not before and line.startswith("    ")
            indented = indented or starts
            if starts:
                yield from (".. code-block:: python", "")
            yield line if indented else _inline(line)
        before = line


def _inline(line: str) -> str:
    """Return a line with code as literals, except names, which become links, and with special characters escaped."""
    parts = CODE.split(line)
    for index, part in enumerate(parts):
        if index % 2:
            parts[index] = f"`{part}`" if NAME.fullmatch(part) else f"``{part}``"
        elif not part.lstrip().startswith("* "):
            parts[index] = SPECIAL.sub(lambda found: found[1] or f"\\{found[0]}", part)
    return "".join(parts)
