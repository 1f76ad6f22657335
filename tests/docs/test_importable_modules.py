"""Test that the page on what an algorithm may import, the templates of new plugins and the public API agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "plugins/rlcore_tools/new_plugin/templates"
IMPORT = re.compile(r"^(?:from (rlcore[\w.]*) import ([\w, ]+)|import (rlcore[\w.]*))$", re.MULTILINE)


def rows() -> dict[str, str]:
    """Return module and contents of each row of the table."""
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8").partition("### What an algorithm may import")[2]
    return dict(re.findall(r"^\| `(rlcore[\w.]*)` \| (.*) \|$", page, re.MULTILINE))


def public_names() -> set[str]:
    lines = (ROOT / "tests/public_api.txt").read_text(encoding="utf-8").splitlines()
    return {line.split(maxsplit=1)[0].rstrip(":") for line in lines}


@pytest.mark.parametrize(
    "template", sorted(TEMPLATES.rglob("*.py.tmpl")), ids=lambda path: str(path.relative_to(TEMPLATES))
)
def test_templates_import_what_the_page_lists(template: Path) -> None:
    known, modules = public_names(), rows()
    for module, names, plain in IMPORT.findall(template.read_text(encoding="utf-8")):
        for name in filter(None, re.split(r",\s*", names)):
            assert module in modules or f"{module}.{name}" in modules, f"{module}: not on the page"
            assert f"{module}.{name}" in known or f"{module}.{name}" in modules, f"{module}.{name}: not public"
        assert not plain or plain in modules


def test_the_names_on_the_page_are_public() -> None:
    known, found = public_names(), rows()
    assert len(found) > 20
    for module in found:
        assert any(name.startswith(f"{module}.") for name in known), module
    listed = re.findall(r"`(\w+)`", found["rlcore.training"])
    assert {f"rlcore.training.{name}" for name in listed} <= known
    assert {
        name.removeprefix("rlcore.training.") for name in known if re.fullmatch(r"rlcore\.training\.\w+", name)
    } <= {*listed}
