"""Tests of the console without rich, which a run has where rlcore-report is not installed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from console_screens import PPO, SomeRun

from rlcore.loggers.console import ConsoleConfig, ConsoleLogger
from rlcore.training.api import Result


def shown(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    *events: tuple[str, Any, Any],
    config: ConsoleConfig | None = None,
    error: BaseException | None = None,
    **run: Any,
) -> list[str]:
    """Return the lines that a plain console prints for events (method, step, what)."""
    logger = ConsoleLogger(config or ConsoleConfig(), SomeRun(tmp_path, **run))
    for method, step, what in events:
        getattr(logger, method)(step, what)
    logger.close(error)
    return capsys.readouterr().out.splitlines()


def test_a_step_and_an_evaluation_are_one_plain_line_each_and_the_folder_is_the_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events = ("metrics", 7, PPO | {"eval/reward/mean": 0.5}), ("completions", 7, [{"prompt": "p", "output": "o"}])
    lines = shown(capsys, tmp_path, *events, total_steps=300, step=300)
    assert lines == [
        "step 7/300   reward/mean 0.5123   reward/std 0.1   loss/total 0.031   loss/policy -0.0123   kl/mean 2.1e-05",
        "eval 7/300   reward/mean 0.5",
        f"finished after step 300: {tmp_path}",
    ]
    assert shown(capsys, tmp_path, total_steps=300, step=7) == [f"stopped after step 7: {tmp_path}"]


def test_the_metrics_are_those_that_the_user_or_else_the_trainer_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = {"headline": ("grad/norm", "kl/")}
    assert shown(capsys, tmp_path, ("metrics", 1, PPO), **named)[0] == "step 1   grad/norm 3   kl/mean 2.1e-05"
    config = ConsoleConfig(metrics=("loss/total", "absent"), every=2)
    lines = shown(capsys, tmp_path, *(("metrics", step, PPO) for step in (1, 2)), config=config, **named)
    assert lines[:-1] == ["step 2   loss/total 0.031"]


def test_an_error_is_printed_without_logins_and_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = ValueError("\x1b[2J https://me:secret@host/x")
    (line,) = shown(capsys, tmp_path, error=error)
    assert line.startswith(r"ValueError: \x1b[2J https://")
    assert line.endswith(f" after step 0: {tmp_path}")
    assert "secret" not in line


def test_a_result_is_a_table_in_a_notebook_with_its_texts_escaped() -> None:
    run: Any = SimpleNamespace(headline=("b",), step=3)
    result = Result({"a": 1.0, "b": 0.25}, Path("runs/<x>"), run, run)
    assert result._repr_html_() == (
        "<table><tr><th>last metrics</th><th>value</th></tr><tr><td>b</td><td>0.25</td></tr>"
        "<tr><td>steps</td><td>3</td></tr><tr><td>folder</td><td>runs/&lt;x&gt;</td></tr></table>"
    )


def test_lines_show_turns_and_success_of_episodes_and_the_ends_that_occurred(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {"episode/turns": 2.5, "episode/done": 0.75, "episode/context": 0.0, "episode/failed": 0.25}
    metrics = {"kl/mean": 0.5, "lr": 0.1, **numbers, "episode/success": 0.0}
    events = ("metrics", 1, metrics), ("metrics", 1, {f"eval/{name}": value for name, value in metrics.items()})
    lines = shown(capsys, tmp_path, *events, headline=("kl/mean",))
    episodes = "episode/turns 2.5   episode/success 0   episode/done 0.75   episode/failed 0.25"
    assert lines[:2] == [f"{kind} 1   kl/mean 0.5   {episodes}" for kind in ("step", "eval")]
