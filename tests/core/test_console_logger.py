"""What a person sees of a run: lines, a bar, tables of completions, a closing summary."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console

from rlcore import logging
from rlcore.loggers.console import ConsoleLogger
from rlcore.loggers.settings import ConsoleConfig
from rlcore.observers import Observers
from rlcore.settings import EvalConfig, TrainConfig

ESCAPE = "\x1b"


@attrs.define
class SomeRun:
    dir: Path
    step: int = 0
    total_steps: int | None = None
    config: TrainConfig = attrs.field(factory=TrainConfig)
    observers: Observers = attrs.field(factory=Observers)


@attrs.define
class Screen:
    """A console logger, and the text it has printed."""

    logger: ConsoleLogger
    run: SomeRun
    file: io.StringIO

    @property
    def text(self) -> str:
        return self.file.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()


def make_screen(
    tmp_path: Path, config: ConsoleConfig | None = None, *, terminal: bool = False, width: int = 100, **run: Any
) -> Screen:
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False)
    some_run = SomeRun(tmp_path, **run)
    return Screen(ConsoleLogger(config or ConsoleConfig(), some_run, console=console), some_run, file)


PPO = {
    "reward/mean": 0.51234, "reward/std": 0.1, "loss/total": 0.031, "loss/policy": -0.0123, "kl/mean": 0.000021,
    "response/length_mean": 7.93, "time/sample_s": 0.7, "time/step_s": 1.3181, "grad/norm": 3.0,
}  # fmt: skip


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


def test_metrics_nobody_knows_are_shown_where_there_are_no_others(tmp_path: Path) -> None:
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


def test_no_bar_where_the_end_is_unknown_or_it_is_not_wanted(tmp_path: Path) -> None:
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


def test_a_bar_goes_and_comes_back_with_the_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_no_color_is_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("x")
    coloured = make_screen(tmp_path, terminal=True)
    coloured.logger.close(error)
    assert f"{ESCAPE}[1;31m" in coloured.text
    monkeypatch.setenv("NO_COLOR", "1")
    plain = make_screen(tmp_path, terminal=True)
    plain.logger.close(error)
    assert not any(f"3{digit}m" in plain.text for digit in range(8))


def rows(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {i}", "output": f"answer {i}", "reward": i / 4, "metric": i} for i in range(count)]


def test_the_first_completions_are_shown_in_a_table(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(show=2))
    screen.logger.completions(3, rows(5))
    assert "completions after step 3, 2 of 5" in screen.text
    for word in ("prompt", "output", "reward", "metric", "question 1", "answer 1", "0.2500"):
        assert word in screen.text
    assert "answer 2" not in screen.text


def test_how_many_are_shown_is_the_evaluations_setting_unless_said(tmp_path: Path) -> None:
    config = TrainConfig(eval=EvalConfig(show=1))
    for option, expected in ((None, 1), (3, 3), (0, 0)):
        file = io.StringIO()
        logger = ConsoleLogger(ConsoleConfig(show=option), SomeRun(tmp_path, config=config), console=Console(file=file))
        logger.completions(1, rows(5))
        assert file.getvalue().count("answer") == expected


def test_text_of_a_model_cannot_drive_the_terminal(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("batch", [[], [{"prompt": "a", "output": "b"}], [{"output": "b", "reward": None, "ok": True}]])
def test_rows_without_scores_are_shown_too(tmp_path: Path, batch: list[dict[str, Any]]) -> None:
    screen = make_screen(tmp_path)
    screen.logger.completions(1, batch)
    assert ("output" in screen.text) is bool(batch)


def test_the_summary_says_what_was_reached_where_it_lies_and_how_to_load_it(tmp_path: Path) -> None:
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


def test_completions_of_a_sweep_say_how_each_was_sampled(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    rows = [{"sampling": f"temperature={t}", "prompt": "p", "output": "o", "reward": 1.0} for t in (0, 0.5)]
    screen.logger.completions(1, rows)
    assert "temperature=0.5" in screen.text
    screen.logger.metrics(1, {"eval/reward/mean@temperature=0": 0.25, "eval/reward/std@temperature=0": 9.0})
    assert "reward@temperature=0    0.2500" in screen.text
    assert "9.0" not in screen.text


def test_of_a_sweep_completions_of_each_way_are_shown(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, ConsoleConfig(show=3))
    ways = ("beta=0", "beta=100")
    screen.logger.completions(
        5, [{"sampling": way, "prompt": "p", "output": f"{way} no {i}"} for way in ways for i in range(9)]
    )
    assert "3 of 18" in screen.text
    assert re.findall(r"beta=\d+ no \d", screen.text) == ["beta=0 no 0", "beta=0 no 1", "beta=100 no 0"]


def test_the_summary_of_a_failed_run_says_why_and_how_to_go_on(tmp_path: Path) -> None:
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


def test_a_pipe_gets_plain_lines_from_the_real_standard_output(tmp_path: Path) -> None:
    program = (
        "import sys; from types import SimpleNamespace as N; from pathlib import Path\n"
        "from rlcore.loggers.console import ConsoleLogger; from rlcore.loggers.settings import ConsoleConfig\n"
        "from rlcore.observers import Observers\n"
        "run = N(dir=Path(sys.argv[1]), step=0, total_steps=3, config=None, observers=Observers())\n"
        "logger = ConsoleLogger(ConsoleConfig(), run)\n"
        "logger.metrics(1, {'reward/mean': .5}); logger.close(None)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "step 1/3   reward    0.5000"
    assert ESCAPE not in done.stdout
    assert done.stderr == ""


def test_an_encoder_decoder_is_loaded_as_one(tmp_path: Path) -> None:
    screen = make_screen(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"is_encoder_decoder": true}')
    screen.logger.close(None)
    assert f'transformers.AutoModelForSeq2SeqLM.from_pretrained("{tmp_path}/model")' in screen.text
