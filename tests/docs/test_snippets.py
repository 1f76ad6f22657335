"""Tests that every snippet of the documentation runs; see `sittings.py`."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from sittings import CHECKS, ROOT, Sitting, Snippet, snippets_of
from warm_python import WarmPython

PLACES = ("*.md", "docs/**/*.md", "rlcore_*/README.md", "plugins/README.md", "plugins/*/README.md")
WRITTEN = sorted(page for place in PLACES for page in ROOT.glob(place))
PAGES = [page for page in WRITTEN if "```" in page.read_text(encoding="utf-8")]
PROSE = {"", "text"}


@pytest.fixture
def sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_python: WarmPython) -> Iterator[Sitting]:
    environment = dict(os.environ)
    yield Sitting(tmp_path, monkeypatch, warm_python)
    os.environ.clear()  # rlcore.logging stores a page's settings in it
    os.environ.update(environment)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[name]


LONG = {
    "conformance.md", "data.md", "distillation.md", "environments.md", "errors.md", "from-trl.md",
    "memory.md", "performance.md", "plugins.md", "profiling.md", "rewards.md", "runs.md", "sweeps.md", "training.md",
    "tutorial.md",
}  # fmt: skip
"""Pages whose snippets train for long, or start many interpreters: each takes 4 to 125 s of CPU time."""
REFERENCES = {"hooks", "protocols"}
"""Folders of pages that hold an example each, which takes a second of CPU time; one of six is run by day."""


def _case(page: Path) -> Any:
    examples = [each for each in PAGES if each.parent == page.parent]
    is_long = page.name in LONG or (page.parent.name in REFERENCES and examples.index(page) % 6)
    marks = [pytest.mark.nightly] if is_long else [pytest.mark.slow]
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


@pytest.mark.parametrize("page", [_case(page) for page in PAGES])
def test_every_snippet_of_a_page_runs(page: Path, sitting: Sitting) -> None:
    for snippet in snippets_of(page):
        if snippet.language in PROSE and not snippet.needs:
            continue
        known = snippet.language in CHECKS or "said" in snippet.needs
        assert known, f"{snippet.where}: nothing checks the language '{snippet.language}'"
        try:
            sitting.take(snippet)
        except BaseException as error:
            error.add_note(f"in the snippet at {snippet.where}")
            raise


def test_every_python_and_yaml_snippet_can_be_parsed() -> None:
    parsers = {"python": ast.parse, "yaml": lambda text: list(yaml.safe_load_all(text))}
    broken = []
    for snippet in (snippet for page in PAGES for snippet in snippets_of(page) if snippet.language in parsers):
        try:
            parsers[snippet.language](snippet.text)
        except (SyntaxError, yaml.YAMLError) as error:
            broken.append(f"{snippet.where}: {error}")
    assert not broken, "\n".join(broken)


def test_every_code_block_of_a_page_is_found() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert 2 * len(list(snippets_of(page))) == text.count("```"), f"{page}: a fence is indented, or not closed"


@pytest.mark.slow
def test_a_snippet_that_fails_fails_the_page(sitting: Sitting) -> None:
    for language, text in [
        ("python", "assert 1 + 1 == 3\n"),
        ("yaml", "run: {stepz: 3}\n"),
        ("console", "$ make quickstarts\n"),
        ("console", "$ pip install rlcore-unheard-of\n"),
        ("console", "$ rlcore --version\nrlcore 99.0\n"),
        ("console", "$ rlcore show nothing\n"),
    ]:
        with pytest.raises((AssertionError, ValueError)):
            sitting.take(Snippet("here", language, text, ()))
