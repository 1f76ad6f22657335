"""Tests of the console with rich: step lines and the progress bar."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from console_screens import ESCAPE, PPO, make_screen

from rlcore import logging
from rlcore.loggers.console import ConsoleConfig


def test_a_step_is_one_line_with_the_numbers_that_matter(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, total_steps=300)
    screen.logger.metrics(7, PPO)
    assert screen.text == (
        "step   7/300   reward    0.5123   kl  2.10e-05   loss/policy   -0.0123   length    7.9300   loss    0.0310"
        "       1.32 s\n"
    )


def test_lines_are_aligned_whatever_the_numbers(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, total_steps=1000)
    values = [0.0, -0.1, 123456.789, 1e-9, -1e12, float("nan"), float("-inf"), 42.0, 3.0]
    for step, value in enumerate(values, start=1):
        screen.logger.metrics(step, {"reward/mean": value, "loss/total": -value, "time/step_s": 0.5})
    assert len({len(line) for line in screen.lines}) == 1
    assert len({line.index("loss") for line in screen.lines}) == 1
    shown = [line.split()[3] for line in screen.lines]
    assert shown == ["0", "-0.1000", "1.23e+05", "1.00e-09", "-1.00e+12", "nan", "-inf", "42", "3.0000"]


def test_a_line_is_never_wrapped_and_a_terminal_gets_the_first_numbers_that_fit(tmp_path: Path) -> None:
    to_file = make_screen(tmp_path, width=60)
    to_terminal = make_screen(tmp_path, ConsoleConfig(progress=False), terminal=True, width=60)
    for screen in (to_file, to_terminal):
        screen.logger.metrics(1, PPO)
        assert len(screen.lines) == 1
    assert "length" in to_file.text
    assert "reward" in to_terminal.text
    assert "length" not in to_terminal.text
    assert "1.32 s" in to_terminal.text


def test_unknown_metrics_are_shown_if_there_are_no_usual_ones(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    screen.logger.metrics(1, {"q/mean": 2.0, "q/std": 1.0, "time/step_s": 1.0})
    assert "q    2.0000" in screen.text
    assert "std" not in screen.text


def test_the_metrics_asked_for_are_shown_in_their_order(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(metrics=("grad/norm", "absent", "reward/std")))
    screen.logger.metrics(1, PPO)
    assert screen.lines[0].split()[2:6] == ["grad/norm", "3.0000", "reward/std", "0.1000"]


def test_every_prints_fewer_steps_but_all_evaluations_and_the_last(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(every=4), total_steps=10)
    for step in range(1, 11):
        screen.logger.metrics(step, PPO)
        if step == 5:
            screen.logger.metrics(step, {"eval/reward/mean": 0.9})
    assert [line[:10].split() for line in screen.lines] == [
        ["step", "4/10"], ["eval", "5/10"], ["step", "8/10"], ["step", "10/10"]
    ]  # fmt: skip


def test_an_evaluation_is_a_line_of_its_own_reward_first(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    screen.logger.metrics(
        5, {"eval/optimality/mean": 0.75, "eval/reward/std": 1.0, "eval/reward/mean": 0.5, "eval/time_s": 9}
    )
    assert screen.lines == ["eval      5   reward    0.5000   optimality    0.7500"]


def test_of_a_sweep_every_value_of_a_metric_is_shown_before_the_next_and_a_users_own_before_lengths(
    tmp_path: Path,
) -> None:
    screen = make_screen(tmp_path)
    for_each = {"response/length_mean": 4.0, "response/truncated_fraction": 1.0, "optimality": 0.5}
    swept = {f"eval/{name}@beta={beta}": value for beta in (0, 1, 100) for name, value in for_each.items()}
    screen.logger.metrics(5, {"eval/loss/v": 2.0, **swept})
    labels = re.findall(r"[a-z_]+(?:@beta=\d+)?(?=    )", screen.lines[0].removeprefix("eval      5"))
    own = [f"optimality@beta={beta}" for beta in (0, 1, 100)]
    assert labels == [*own, "v", *(label.replace("optimality", "length") for label in own)]


def test_a_terminal_has_a_bar_with_the_time_left_and_a_file_has_none(tmp_path: Path) -> None:
    for terminal in (True, False):
        screen = make_screen(tmp_path, terminal=terminal, total_steps=4)
        for step in (1, 2, 3):
            screen.run.step = step
            screen.logger.metrics(step, PPO)
        screen.logger.close(None)
        assert ("training" in screen.text) is terminal
        assert ("3/4" in screen.text.replace("step 3/4", "")) is terminal
        assert (ESCAPE in screen.text) is terminal


def test_no_progress_bar_is_shown_if_the_end_is_unknown_or_it_is_disabled(tmp_path: Path) -> None:
    for screen in (
        make_screen(tmp_path, terminal=True),
        make_screen(tmp_path, ConsoleConfig(progress=False), terminal=True, total_steps=4),
    ):
        screen.logger.metrics(1, PPO)
        screen.logger.close(None)
        assert "training" not in screen.text


def test_a_bar_appears_once_the_end_becomes_known_and_starts_where_the_run_resumed(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, terminal=True, step=6)
    screen.logger.metrics(7, PPO)
    assert "training" not in screen.text
    screen.run.total_steps, screen.run.step = 10, 8
    screen.logger.metrics(8, PPO)
    screen.logger.close(None)
    assert "8/10" in screen.text
    assert "2 steps in" in screen.text


def test_a_bar_that_is_switched_off_leaves_lines_and_no_control_characters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PROGRESS", "0")
    screen = make_screen(tmp_path, terminal=True, total_steps=4)
    for step in (1, 2):
        screen.run.step = step
        screen.logger.metrics(step, PPO)
    screen.logger.close(None)
    plain = re.sub(rf"{ESCAPE}\[[0-9;]*m", "", screen.text)  # colours
    assert all(letter.isprintable() or letter == "\n" for letter in plain)
    assert [line.split()[:2] for line in plain.splitlines()[:2]] == [["step", "1/4"], ["step", "2/4"]]
    assert "training" not in plain


def test_the_progress_bar_is_removed_for_other_output_and_shown_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_PROGRESS", "")
    screen = make_screen(tmp_path, terminal=True, total_steps=9)
    shown = []
    for step, change in enumerate([logging.enable_progress_bar, logging.disable_progress_bar] * 2, start=1):
        change()
        screen.run.step = step
        screen.logger.metrics(step, PPO)
        before = len(screen.text)
        screen.logger.metrics(step, PPO)
        shown.append("training" in screen.text[before:])
    screen.logger.close(None)
    assert shown == [True, False, True, False]


def test_the_variable_no_color_disables_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("x")
    coloured = make_screen(tmp_path, terminal=True)
    coloured.logger.close(error)
    assert f"{ESCAPE}[1;31m" in coloured.text
    monkeypatch.setenv("NO_COLOR", "1")
    plain = make_screen(tmp_path, terminal=True)
    plain.logger.close(error)
    assert not any(f"3{digit}m" in plain.text for digit in range(8))


def test_a_pipe_gets_plain_lines_from_the_real_standard_output(tmp_path: Path) -> None:
    program = (
        "import sys; from types import SimpleNamespace as N; from pathlib import Path\n"
        "from rlcore.loggers.console import ConsoleConfig; from rlcore_report.console import RichConsole\n"
        "run = N(dir=Path(sys.argv[1]), step=0, total_steps=3, config=None, headline=(), take_unreported=list)\n"
        "logger = RichConsole(ConsoleConfig(), run)\n"
        "logger.metrics(1, {'reward/mean': .5}); logger.close(None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "step 1/3   reward    0.5000"
    assert ESCAPE not in done.stdout
    assert done.stderr == ""
