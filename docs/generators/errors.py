"""Generate the catalogue of errors: the meaning of each, an example that raises it, its message, and how to fix it."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

from generators.docstrings import Undocumented, read
from generators.examples import EXAMPLES
from rlcore import errors

INTRODUCTION = """\
# Errors

Generated from `rlcore/errors.py` by `make docs`. Every error that rlcore raises is one of these. Its message states
what is wrong, where, the value seen and what to do. Its class is also a subclass of a built-in error, so
`except ValueError` and `except rlcore.RLCoreError` both work. The command line prints `Name: message` and exits with 1;
`RLCORE_DEBUG=1` adds the traceback.

The examples below run as tests, in their order and in one folder with a small model in `./gpt2`, after these lines:

<!-- setup: gpt2 -->
```python
import rlcore

samples = ["The cat sat.", "The dog ran."]
```
"""


def error_classes() -> dict[str, type[Exception]]:
    """Return the error classes by name, in the order of their definition."""
    found = {name: one for name, one in vars(errors).items() if inspect.isclass(one)}
    return {name: one for name, one in found.items() if issubclass(one, errors.RLCoreError)}


def pages(classes: dict[str, type[Exception]] | None = None, cases: Path = EXAMPLES / "errors.toml") -> dict[str, str]:
    """Return a mapping from the page's path to its text.

    Raises:
        Undocumented: an error has no example, or an example belongs to no error.
    """
    classes = error_classes() if classes is None else classes
    written: dict[str, Any] = tomllib.loads(cases.read_text(encoding="utf-8"))
    if missing := sorted(classes.keys() ^ written.keys()):
        raise Undocumented(f"{cases.name} and the errors do not agree on {', '.join(missing)}")
    parts = [INTRODUCTION, *(_section(name, one, written[name]) for name, one in classes.items())]
    return {"errors.md": "\n".join(parts)}


def _section(name: str, error: type[Exception], case: dict[str, str]) -> str:
    names = [f"`{base.__name__}`" for base in error.__bases__]
    bases = f"{'Base class' if len(names) == 1 else 'Base classes'}: {', '.join(names)}"
    lines = [f"## {name}", "", f"{read(error, name).text} {bases}.", ""]
    if "before" in case:
        lines += [case["before"].strip(), ""]
    language = "console" if "console" in case else "python"
    raised = case.get("raises", name)
    lines += [f"<!-- setup: raises={raised} -->", f"```{language}", case[language].strip(), "```", ""]
    lines += ["<!-- setup: said -->", "```text", f"{raised}: {case['says'].strip()}", "```", ""]
    return "\n".join([*lines, case["do"].strip(), ""])
