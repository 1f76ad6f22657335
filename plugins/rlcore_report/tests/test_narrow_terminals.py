"""Commands on terminals of 60 and 80 columns, and in a pipe whose reader exits, as `head` does."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from report_runs import write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore.cli import main
from rlcore.plugins.registry import all_registries


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def long_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.chdir(tmp_path)
    place = RunDir(Path("runs/mine"))
    place.path.mkdir(parents=True)
    place.write_config({"run": {"name": "mine"}}, {"rlcore": "0.1.0"})
    numbers = {f"reward/measure_{i}": i / 7 for i in range(6)}
    write_lines(place.rollouts, [
        {"step": 9, "prompt": f"question {i}", "output": f"the whole answer {i} " * 4, "length": 12, "ended": True,
         "group": 3, "reward": 0.5, **numbers} for i in range(2000)
    ])  # fmt: skip
    return place


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int, *words: str) -> str:
    screen = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", str(width))
        patch.setattr("sys.stdout", screen)
        assert main(list(words)) == 0
    return re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 80])
def test_no_line_is_wider_than_the_terminal_and_texts_have_room(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    shown = on_terminal(monkeypatch, width, "rollouts", "mine")
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= width
    assert "  question 1999" in lines
    assert any(line.startswith("  the whole answer 1999 the whole answer 1999") for line in lines)
    assert any(line.startswith("step 9  end ended  length 12  group 3  reward 0.5000") for line in lines)
    for words in (["rollouts"], ["list-plugins"], ["show", "gen"]):
        lines = on_terminal(monkeypatch, width, *words).splitlines()
        assert max(len(line.rstrip()) for line in lines) <= width, words
    options = on_terminal(monkeypatch, width, "show", "gen")
    assert re.search(r"^max_new_tokens: int.*default \d+", options, re.MULTILINE)
    assert max(len(line.strip()) for line in options.splitlines()) > width / 2  # meanings are no thin column


@pytest.mark.parametrize(("width", "is_table"), [(60, False), (75, False), (76, True), (80, True)])
def test_names_of_runs_are_never_broken(
    long_run: RunDir, monkeypatch: pytest.MonkeyPatch, width: int, is_table: bool
) -> None:
    """A table takes 22 + 5 + 8 + 11 + 22 columns and four gaps of two: 76."""
    long_run.path.rename(long_run.path.with_name("randomwalks-lr-0.00001"))
    lines = [line.rstrip() for line in on_terminal(monkeypatch, width, "rollouts").splitlines()]
    assert max(map(len, lines)) <= width
    assert lines[0].split()[0] == ("run" if is_table else "randomwalks-lr-0.00001")
    if not is_table:
        assert lines[1:] == ["  0 steps, 2000 rollouts, 0 completions"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_components_are_listed_in_lines_that_end_after_a_name_and_its_comma(
    monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    lines = on_terminal(monkeypatch, width, "list-plugins").splitlines()
    cells = [line[lines[0].index("components") :].rstrip() for line in lines]
    assert not [cell for cell in cells if cell.startswith((",", " "))]
    named = {name for cell in cells for name in re.findall(r"[\w-]+", cell)}
    assert {name for plugin in all_registries().discovery.plugins for each in plugin.component_names.values()
            for name in each} <= named  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("words", [["rollouts", "mine"], ["list-plugins"], ["show", "gen"]], ids=lambda words: words[0])
def test_a_reader_that_exits_early_is_no_error(long_run: RunDir, words: list[str]) -> None:
    command = [sys.executable, "-m", "rlcore", *words]
    reading, writing = os.pipe()
    os.close(reading)  # the reader has gone before the first line, the worst case of `| head`
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
