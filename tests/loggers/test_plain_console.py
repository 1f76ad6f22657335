"""Tests of the console without rich, which a run has where rlcore-report is not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from console_screens import PPO, SomeRun

from rlcore.loggers.console import ConsoleConfig, ConsoleLogger


def shown(capsys: pytest.CaptureFixture[str], tmp_path: Path, *events: tuple[str, Any, Any], **run: Any) -> list[str]:
    """Return the lines that a plain console prints for events (method, step, what)."""
    logger = ConsoleLogger(ConsoleConfig(show=2), SomeRun(tmp_path, **run))
    for method, step, what in events:
        getattr(logger, method)(step, what)
    logger.close(None)
    return capsys.readouterr().out.splitlines()


def test_a_step_and_an_evaluation_are_one_plain_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, tmp_path, ("metrics", 7, PPO), ("metrics", 7, {"eval/reward/mean": 0.5}), total_steps=300)
    assert lines[0].startswith(
        "step   7/300   reward    0.5123   kl  2.10e-05   loss/policy   -0.0123   length    7.93"
    )
    assert lines[0].endswith("   loss    0.0310       1.32 s")
    assert lines[1] == "eval   7/300   reward    0.5000"


def test_a_completion_is_a_line_with_its_scores_and_no_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": "q\x1b", "output": "a\nb", "reward": 0.25}, {"prompt": "p", "output": "o"}, {"prompt": "x"}]
    lines = shown(capsys, tmp_path, ("completions", 3, rows))
    assert lines[:3] == ["completions after step 3, 2 of 3", r"  'q\x1b' → 'a\nb'   reward 0.2500", "  'p' → 'o'"]


def test_the_summary_names_the_numbers_and_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, tmp_path, ("metrics", 1, {"loss": 2.0}), total_steps=4)
    assert lines[1].startswith("stopped: 0 steps in 0.")
    assert lines[2:] == ["  last step  loss 2.0000", f"  run        {tmp_path}"]
