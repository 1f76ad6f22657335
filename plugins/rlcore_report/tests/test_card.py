"""Tests of the card of a run in headless Chromium: what its first line has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from report_runs import address_of, make_run, write_lines

from rlcore.checkpoints.run_folder import RunDir

pytestmark = pytest.mark.slow  # one browser for all
Open = Callable[[str], Any]


def test_the_card_names_the_steps_of_both_values_and_a_first_evaluation_that_came_late(
    open_page: Open, tmp_path: Path
) -> None:
    late, trained = make_run(tmp_path / "late", steps=40), make_run(tmp_path / "trained", steps=40)
    for run in (late, trained):
        RunDir(run).completions.unlink()
    write_lines(RunDir(late).metrics, [{"step": step, "eval/reward/mean": step / 40} for step in (10, 20, 40)])
    write_lines(RunDir(trained).metrics, [{"step": step, "reward/mean": float(step % 2)} for step in range(1, 11)])
    page = open_page(address_of([late, trained], tmp_path / "page.html")).page
    page.locator(".answer-card >> nth=1").wait_for()
    first, second = page.locator(".answer-card .change").all_inner_texts()
    assert "0.25 → 1" in first
    assert first.endswith("step 10 → step 40; the first evaluation was at step 10")
    assert second.endswith("over the first and the last 2 steps, steps 1 to 2 → steps 9 to 10")
    whole = open_page(address_of([make_run(tmp_path / "whole")], tmp_path / "whole.html")).page
    assert whole.locator(".answer-card .change").inner_text().endswith("over 3 rows, step 0 → step 40")
