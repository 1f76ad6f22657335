"""`rlcore rollouts` prints tables for a person, a line a row into a pipe, JSON for machines, and is light."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import rlcore
from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main

Python = Callable[..., subprocess.CompletedProcess[str]]
ROWS = [
    {"step": 1, "prompt": "Dear", "output": "Sir", "length": 3, "ended": True, "reward": 0.25, "columns": {"id": 7}},
    {"step": 2, "prompt": "Dear", "output": "Ma\ndam", "length": 5, "ended": False, "reward": 2.0},
    {"step": 2, "prompt": "x" * 300, "output": "y" * 500, "length": 500, "ended": False, "reward": -1.5},
    {"step": 2, "prompt": "[red]", "output": "\x1b[31mred", "length": 8, "ended": True, "reward": 1.0},
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run called `mine` in ./runs."""
    monkeypatch.chdir(tmp_path)
    place = RunDir(Path("runs/mine"))
    place.path.mkdir(parents=True)
    place.write_config({"run": {"name": "mine"}}, {"rlcore": "0.1.0"})
    place.rollouts.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return place


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    def give(*words: str) -> str:
        assert main(["rollouts", *words]) == 0
        return capsys.readouterr().out

    return give


def cells(shown: str) -> list[list[str]]:
    return [re.split(r" {2,}", line.strip()) for line in shown.splitlines()]


def test_the_title_is_one_line_above_a_table_that_is_narrower(run: RunDir, say: Callable[..., str]) -> None:
    row = {"step": 1, "prompt": "a", "output": "b", "length": 1, "ended": True, "reward": 1.0}
    run.rollouts.write_text(json.dumps(row) + "\n")
    lines = say(f"{'../runs/' * 4}{run.path.name}").splitlines()
    assert len(lines[0]) > len(lines[1])
    assert [line.split()[:2] for line in lines] == [[lines[0].split()[0], "rollouts"], ["step", "prompt"], ["1", "a"]]


def test_in_a_pipe_a_row_is_a_line_of_plain_text(run: RunDir, say: Callable[..., str]) -> None:
    title, head, *rows = cells(say("mine"))
    assert title == ["runs/mine: rollouts of step 2"]
    assert head == ["step", "prompt", "output", "end", "length", "reward"]
    assert rows == [
        ["2", "Dear", "Ma\\ndam", "cut", "5", "2.0000"],
        ["2", "…" + "x" * 200, "y" * 400 + "…", "cut", "500", "-1.5000"],
        ["2", "[red]", "\\x1b[31mred", "ended", "8", "1.0000"],
    ]
    assert cells(say("mine", "--full"))[3] == ["2", "x" * 300, "y" * 500, "cut", "500", "-1.5000"]


def test_the_reward_of_an_episode_is_shown_before_its_metrics(run: RunDir, say: Callable[..., str]) -> None:
    ends = dict.fromkeys(("episode/done", "episode/truncated", "episode/max_turns", "episode/context"), 0.0)
    row = {"step": 3, "prompt": "Go", "output": "a", "length": 1, "episode/turns": 2.0, **ends, "reward": 0.75}
    run.rollouts.write_text(json.dumps(row) + "\n")
    _, *shown = cells(say("mine"))
    assert shown[-1][:5] == ["3", "Go", "a", "1", "0.7500"]
    assert "reward" in " ".join(word for line in shown[:-1] for word in line)


def test_the_best_and_the_worst_are_tables_of_their_own(run: RunDir, say: Callable[..., str]) -> None:
    shown = cells(say("mine", "--best", "2", "--worst", "1", "--grep", "e", "--step", "1:"))
    assert [line[:3] for line in shown if line[0] in {"1", "2"}] == [
        ["2", "Dear", "Ma\\ndam"], ["2", "[red]", "\\x1b[31mred"], ["1", "Dear", "Sir"],
    ]  # fmt: skip
    assert [line for line in shown if len(line) == 1] == [
        ["runs/mine: rollouts with the highest rewards"],
        ["runs/mine: rollouts with the lowest rewards"],
    ]


def test_brackets_in_a_run_name_are_not_read_as_markup(run: RunDir, say: Callable[..., str]) -> None:
    run.path.rename("runs/[bold]mine")
    assert cells(say("[bold]mine"))[0] == ["runs/[bold]mine: rollouts of step 2"]


def test_a_terminal_gets_a_framed_table(
    run: RunDir, say: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", screen)
        assert main(["rollouts", "mine"]) == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    lines = plain.splitlines()
    assert max(map(len, lines)) <= 80
    assert "┃ step ┃" in plain
    first, second = (next(i for i, line in enumerate(lines) if part in line) for part in ("│ Ma ", "│ dam "))
    assert second == first + 1
    assert "\x1b[31mred" not in screen.getvalue()


def test_json_holds_the_rows_as_the_file_has_them(run: RunDir, say: Callable[..., str]) -> None:
    found = json.loads(say("mine", "--json", "--step", ":1"))
    assert found == {"schema": 1, "rlcore": rlcore.__version__, "run": "runs/mine", "rows": ROWS[:1]}
    assert json.loads(say("mine", "--json", "--best", "1", "--worst", "1"))["rows"] == [ROWS[1], ROWS[2]]
    run.completions.write_text('{"step": 2, "prompt": "p", "output": "o"}\n')
    assert json.loads(say("mine", "--json", "--completions"))["rows"] == [{"step": 2, "prompt": "p", "output": "o"}]


def test_completions_of_a_sweep_show_their_sampling_options(run: RunDir, say: Callable[..., str]) -> None:
    run.completions.write_text('{"step": 2, "sampling": "temperature=0", "prompt": "p", "output": "o", "reward": 1}\n')
    _, head, row = cells(say("mine", "--completions"))
    assert head == ["step", "prompt", "output", "sampling", "reward"]
    assert row == ["2", "p", "o", "temperature=0", "1"]


def test_without_a_run_name_all_runs_are_listed(run: RunDir, say: Callable[..., str]) -> None:
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n')
    head, row = cells(say())
    assert head == ["run", "steps", "rollouts", "completions", "changed"]
    assert row[:4] == ["mine", "2", "4", "0"]
    (listed,) = json.loads(say("--json"))["runs"]
    assert (listed["run"], listed["steps"], listed["rollouts"]) == ("mine", 2, 4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--best", "3"], "required: RUN"),
        (["--completions"], "required: RUN"),
        (["mine", "--best", "0"], "'0': must be a whole number, at least 1"),
        (["mine", "--worst", "x"], "'x': must be a whole number, at least 1"),
        (["mine", "--step", "a:b"], "steps 'a:b': must be a step or a range, such as 7, 3:9, 3: or :9"),
    ],
)
def test_wrong_arguments_of_rollouts_exit_with_2(
    run: RunDir, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["rollouts", *words])
    assert said in capsys.readouterr().err


def test_missing_runs_steps_and_completions_are_errors_of_one_line(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["nothing"], ["mine", "--step", "9"], ["mine", "--completions"]):
        assert main(["rollouts", *words]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("NoRollouts: ")
        assert err.count("\n") == 1


def test_showing_imports_nothing_heavy(run: RunDir, python: Python) -> None:
    code = (
        "import sys; from rlcore.cli import main; code = main(['rollouts', 'mine'])\n"
        "heavy = {'torch', 'transformers', 'datasets', 'accelerate', 'numpy', 'pandas'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    done = python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_to_a_closed_pipe_is_no_error(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(rlcore.__file__).parents[1]))
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "rlcore", "rollouts", "mine"], stdout=writer, stderr=subprocess.PIPE, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_episode_is_shown_with_the_reason_of_its_end(run: RunDir, say: Callable[..., str]) -> None:
    ends = ("done", "truncated", "max_turns", "max_new_tokens", "context", "failed")
    rows = [
        {"step": 3, "prompt": "Go", "output": "a", "ended": end == "done", "episode/turns": 1.0, "episode/success": 1.0}
        | {f"episode/{each}": float(each == end) for each in ends}
        for end in ends
    ]
    run.rollouts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    shown = [line for line in cells(say("mine")) if line[0] == "3"]
    assert [line[3] for line in shown] == list(ends)
