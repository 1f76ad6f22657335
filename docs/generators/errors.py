"""Write the catalogue of errors: what each means, a mistake that raises it, what it then says, and what to do."""

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

Generated from `rlcore/errors.py` by `make docs`. Every error that rlcore raises on purpose is one of these. Each says
what, where, the value it saw and what to do, and is also the error of Python's own that it refines, so
`except ValueError` and `except rlcore.RLCoreError` both work. The command line prints `Name: message` and exits with 1;
`RLCORE_DEBUG=1` shows the traceback.

The mistakes below are run by the tests, one after the other in one folder, which holds a small model in `./gpt2`; they
begin with:

<!-- setup: gpt2 -->
```python
import rlcore

samples = ["The cat sat.", "The dog ran."]
```
"""


def error_classes() -> dict[str, type[Exception]]:
    """List the error classes in the order they are written."""
    found = {name: one for name, one in vars(errors).items() if inspect.isclass(one)}
    return {name: one for name, one in found.items() if issubclass(one, errors.RLCoreError)}


def pages(classes: dict[str, type[Exception]] | None = None, cases: Path = EXAMPLES / "errors.toml") -> dict[str, str]:
    """Return the page, by its path in the documentation.

    Raises:
        Undocumented: an error has no case, or a case is about no error.
    """
    classes = error_classes() if classes is None else classes
    written: dict[str, Any] = tomllib.loads(cases.read_text(encoding="utf-8"))
    if missing := sorted(classes.keys() ^ written.keys()):
        raise Undocumented(f"{cases.name} and the errors do not agree on {', '.join(missing)}")
    parts = [INTRODUCTION, *(_section(name, one, written[name]) for name, one in classes.items())]
    return {"errors.md": "\n".join(parts)}


def _section(name: str, error: type[Exception], case: dict[str, str]) -> str:
    bases = " and ".join(f"`{base.__name__}`" for base in error.__bases__)
    lines = [f"## {name}", "", f"{read(error, name).text} It is a kind of {bases}.", ""]
    if "before" in case:
        lines += [case["before"].strip(), ""]
    language = "console" if "console" in case else "python"
    raised = case.get("raises", name)
    lines += [f"<!-- setup: raises={raised} -->", f"```{language}", case[language].strip(), "```", ""]
    lines += ["<!-- setup: said -->", "```text", f"{raised}: {case['says'].strip()}", "```", ""]
    return "\n".join([*lines, case["do"].strip(), ""])
