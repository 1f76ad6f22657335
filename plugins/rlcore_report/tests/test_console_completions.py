"""Tests of the console with rich: tables of completions, and the final summary."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from console_screens import ESCAPE, PPO, SomeRun, make_screen
from rich.console import Console

from rlcore.loggers.console import ConsoleConfig
from rlcore.settings import EvalConfig, TrainConfig
from rlcore_report.console import RichConsole


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {i}", "output": f"answer {i}", "reward": i / 4, "metric": i} for i in range(count)]


def test_the_first_completions_are_shown_in_a_table(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(show=2))
    screen.logger.completions(3, rows(5))
    assert "completions after step 3, 2 of 5" in screen.text
    for word in ("prompt", "output", "reward", "metric", "question 1", "answer 1", "0.2500"):
        assert word in screen.text
    assert "answer 2" not in screen.text


def test_the_number_of_shown_completions_is_that_of_the_evaluation_unless_set(tmp_path: Path) -> None:
    config = TrainConfig(eval=EvalConfig(show=1))
    for option, expected in ((None, 1), (3, 3), (0, 0)):
        file = io.StringIO()
        logger = RichConsole(ConsoleConfig(show=option), SomeRun(tmp_path, config=config), console=Console(file=file))
        logger.completions(1, rows(5))
        assert file.getvalue().count("answer") == expected


def test_text_of_a_model_prints_no_control_characters(tmp_path: Path) -> None:
    for terminal in (False, True):
        screen = make_screen(tmp_path, terminal=terminal)
        screen.logger.completions(1, [{"prompt": "[bold]a[/nothing]", "output": f"b{ESCAPE}[2J\x07\r", "reward": 1.0}])
        assert "[bold]a[/nothing]" in screen.text
        assert f"{ESCAPE}[2J" not in screen.text
        assert "\x07" not in screen.text
        assert r"b\x1b[2J\x07\r" in screen.text


def test_long_texts_keep_the_end_of_the_prompt_and_the_beginning_of_the_output(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, width=2000)
    screen.logger.completions(1, [{"prompt": "x" * 999 + "END", "output": "START" + "y" * 999, "reward": 0.0}])
    assert "…" + "x" * 197 + "END" in screen.text
    assert "START" + "y" * 395 + "…" in screen.text


def test_long_names_of_rewards_leave_texts_their_width(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, width=80)
    names = ("reward", "reward/think_format_reward", "reward/accuracy_reward", "length")
    screen.logger.completions(1, [{"prompt": "one of three", "output": "two of three", **dict.fromkeys(names, -1e-6)}])
    assert "one of three │ two of three" in screen.text
    assert screen.text.count("-1.00e-06") == 4
    assert max(map(len, screen.text.splitlines())) <= 80


@pytest.mark.parametrize("batch", [[], [{"prompt": "a", "output": "b"}], [{"output": "b", "reward": None, "ok": True}]])
def test_completions_without_scores_are_shown(tmp_path: Path, batch: list[dict[str, Any]]) -> None:
    screen = make_screen(tmp_path)
    screen.logger.completions(1, batch)
    assert ("output" in screen.text) is bool(batch)


def test_the_summary_shows_the_result_its_folder_and_how_to_load_it(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, total_steps=2)
    (tmp_path / "model").mkdir()
    screen.run.step = 2
    screen.logger.metrics(2, PPO)
    screen.logger.metrics(2, {"eval/reward/mean": 0.875})
    screen.logger.close(None)
    assert "finished: 2 steps in" in screen.text
    assert "last eval  reward 0.8750" in screen.text
    assert f"run        {tmp_path}" in screen.text
    assert f'transformers.AutoModelForCausalLM.from_pretrained("{tmp_path}/model")' in screen.text


def test_a_run_that_ends_before_its_last_step_was_stopped(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, total_steps=5)
    screen.run.step = 2
    screen.logger.close(None)
    assert "stopped: 2 steps in" in screen.text


def test_completions_of_a_sweep_show_how_each_was_sampled(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    rows = [{"sampling": f"temperature={t}", "prompt": "p", "output": "o", "reward": 1.0} for t in (0, 0.5)]
    screen.logger.completions(1, rows)
    assert "temperature=0.5" in screen.text
    screen.logger.metrics(1, {"eval/reward/mean@temperature=0": 0.25, "eval/reward/std@temperature=0": 9.0})
    assert "reward@temperature=0    0.2500" in screen.text
    assert "9.0" not in screen.text


def test_the_shown_completions_of_a_sweep_include_every_combination(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(show=3))
    ways = ("beta=0", "beta=100")
    screen.logger.completions(
        5, [{"sampling": way, "prompt": "p", "output": f"{way} no {i}"} for way in ways for i in range(9)]
    )
    assert "3 of 18" in screen.text
    assert re.findall(r"beta=\d+ no \d", screen.text) == ["beta=0 no 0", "beta=0 no 1", "beta=100 no 0"]


def test_the_summary_of_a_failed_run_shows_the_reason_and_how_to_resume(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, step=3)
    screen.logger.close(ValueError("reward_fn returned 3 numbers for 4 samples"))
    assert "failed after step 3: 0 steps" in screen.text
    assert "ValueError: reward_fn returned 3 numbers for 4 samples" in screen.text
    assert "from_pretrained" not in screen.text
    assert "resume" not in screen.text
    (tmp_path / "checkpoints" / "00000002").mkdir(parents=True)
    screen.logger.close(KeyboardInterrupt())
    assert "interrupted after step 3" in screen.text
    assert f"run.root={tmp_path.parent} run.name={tmp_path.name} run.resume=auto" in screen.text


def test_the_summary_names_the_class_that_loads_the_model(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    (tmp_path / "model").mkdir()
    screen.run.export_class = "AutoModelForSeq2SeqLM"
    screen.logger.close(None)
    assert f'transformers.AutoModelForSeq2SeqLM.from_pretrained("{tmp_path}/model")' in screen.text
