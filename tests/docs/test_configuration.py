"""The page on configuration says what the classes say."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from rlcore.config import describe
from rlcore.settings import TrainConfig

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_is_not_stale() -> None:
    done = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], check=False)
    assert done.returncode == 0, "docs/configuration.md is not what the classes say: run `make docs`"


def test_the_page_holds_every_option() -> None:
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    for row in describe(TrainConfig):
        assert f"| `{row.path}` |" in page


def test_an_option_that_changes_makes_the_page_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "configuration.md"
    names = runpy.run_path(str(DOCS / "generate.py"))
    monkeypatch.setitem(names["main"].__globals__, "PAGE", page)
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert names["main"]() == 0
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert names["main"]() == 0
    text = page.read_text(encoding="utf-8")
    page.write_text(text.replace("`gen.top_p` | float", "`gen.top_p` | int"), encoding="utf-8")
    assert names["main"]() == 1
