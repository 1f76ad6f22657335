"""Tests of the introductory page: the files and functions it names exist, and it covers every package of the core."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "how-a-run-works.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`((?:rlcore|plugins)[\w/]*(?:\.py|/))`", PAGE)))
STOPS = re.findall(r"^\| \d+ \| \[`([\w/]+\.py)`\]\(\.\./([\w/]+\.py)\) `(\w+)` \|", PAGE, re.MULTILINE)


@pytest.mark.parametrize("place", PLACES)
def test_every_file_and_folder_that_the_page_names_exists(place: str) -> None:
    path = ROOT / place
    assert path.is_dir() if place.endswith("/") else path.is_file()


def test_every_file_that_the_page_walks_through_defines_the_names_it_states() -> None:
    rows = len(re.findall(r"^\| \d+ \| \[", PAGE, re.MULTILINE))
    assert len(STOPS) == rows > 15
    for shown, link, name in STOPS:
        assert shown == link
        tree = ast.parse((ROOT / shown).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        assert name in defined, f"{shown} defines no {name}"


def test_every_package_of_the_core_is_in_the_table_with_its_description() -> None:
    shelves = {path.parent for path in (ROOT / "rlcore").glob("*/__init__.py")}
    listed = set(re.findall(r"^\| \d+ \| `(rlcore/\w+)/` \|", PAGE, re.MULTILINE))
    assert {str(shelf.relative_to(ROOT)) for shelf in shelves} == listed
    for shelf in shelves:
        assert ast.get_docstring(ast.parse((shelf / "__init__.py").read_text(encoding="utf-8"))), shelf
