"""The example of the documentation learns, in a short form."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "docs" / "examples" / "shapes.py"


def test_the_example_learns_the_colours_of_shapes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = ["--imitation-steps", "110", "--steps", "2"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path), *steps])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    printed = capsys.readouterr().out
    after = {line.split()[1]: float(line.split()[2]) for line in printed.splitlines() if line.startswith("after")}
    assert after["SFT:"] > 0.5
    assert after["GRPO:"] > 0.5
