"""Insert example files into a page verbatim, so that the test of the page runs the files themselves."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from generators.docstrings import Undocumented

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
LANGUAGES = {".py": "python", ".yaml": "yaml"}


def example(name: str, folder: Path) -> list[str]:
    """Return the example section of a hook or protocol.

    `folder/name.py` is the example. The table `[name]` of `folder/sittings.toml` may contain what is needed to run it:
    `files`, further files of the folder; `plugin`, the dist it is installed as; `console`, commands and their output.

    Raises:
        Undocumented: there is no example.
    """
    file = folder / f"{name}.py"
    if not file.exists():
        raise Undocumented(f"{name} has no example: write {file.relative_to(EXAMPLES.parents[1])}")
    sitting: dict[str, Any] = tomllib.loads((folder / "sittings.toml").read_text(encoding="utf-8")).get(name, {})
    lines = ["## Example", ""]
    if "plugin" not in sitting:
        return [*lines, *_fence(file, "<!-- setup: gpt2 -->")]
    lines += _fence(file, f"<!-- setup: gpt2 file={file.name} -->")
    lines += [f"<!-- setup: plugin={sitting['plugin']} -->", "```toml", "[project.entry-points.rlcore]"]
    lines += [f'acme = "{name}"', "```", ""]
    for further in sitting.get("files", ()):
        lines += _fence(folder / further, f"<!-- setup: file={further} -->")
    return [*lines, "```console", sitting["console"].strip(), "```", ""]


def _fence(file: Path, setup: str) -> list[str]:
    return [setup, f"```{LANGUAGES[file.suffix]}", file.read_text(encoding="utf-8").rstrip(), "```", ""]
