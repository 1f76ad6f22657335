"""Test that plans in docs/scaling.md are what the command prints; as a script, write them anew."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from pathlib import Path

import pytest

from rlcore.cli import main

PAGE = Path(__file__).resolve().parents[4] / "docs" / "scaling.md"
PLAN = re.compile(r"^```text\n\$ (rlcore plan .*)\n((?:.*\n)*?)^```$", re.MULTILINE)
FILE = re.compile(r"<!-- setup: file=(\S+) -->\n```(?:yaml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MODELS = re.compile(r"^```python\n(from transformers import LlamaConfig\n.*?)^```$", re.MULTILINE | re.DOTALL)


STARTED = re.compile(r"`(rlcore|torchrun) (?:[^`]*?)train\s([\w.-]+)")


def planned(page: str, folder: Path) -> str:
    """Return the page with the output of its plans, which run in `folder`."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    with contextlib.chdir(folder):
        exec(MODELS.search(page)[1], {})  # type: ignore[index]
        for name, text in FILE.findall(page):
            Path(name).write_text(text, encoding="utf-8")
        return PLAN.sub(lambda found: f"```text\n$ {found[1]}\n{_output(found[1])}```", page)


def _output(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(shlex.split(command)[1:]) == 0
    return out.getvalue().rstrip() + "\n"


@pytest.mark.nightly
def test_plans_in_the_documentation_are_what_the_command_prints(tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(PLAN.findall(page)) == 2
    assert planned(page, tmp_path) == page


def test_every_run_that_is_planned_has_the_command_that_starts_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    started = {name for _, name in STARTED.findall(page)}
    assert {shlex.split(command)[2] for command, _ in PLAN.findall(page)} <= started


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        PAGE.write_text(planned(PAGE.read_text(encoding="utf-8"), Path(root)), encoding="utf-8")
    sys.exit()
