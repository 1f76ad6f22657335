"""Tests of the console that everything laid out by rich is printed to."""

from __future__ import annotations

import io
import re

import pytest
from console_screens import PPO, make_screen
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from rlcore.loggers.console import TerminalConsole

EVIL = "a\x1b[2Jb\x9b1mc\x1b]0;title\x07"


@pytest.mark.parametrize("terminal", [False, True])
def test_no_text_reaches_a_terminal_with_control_characters(terminal: bool) -> None:
    file = io.StringIO()
    console = TerminalConsole(file=file, width=200, force_terminal=terminal, highlight=False)
    table = Table(EVIL, title=Text(EVIL))
    table.add_row(Text(EVIL, style="bold red"))
    console.print(EVIL, Text(EVIL, style="green"), table)
    assert file.getvalue().count(r"a\x1b[2Jb\x9b1mc\x1b]0;title") == 3  # a cell is as wide as its text was
    assert file.getvalue().count(r"a\x1b[2Jb\x9b1mc") == 5
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", re.sub("\x1b\\[[0-9;]*m", "", file.getvalue()))
    assert ("\x1b[32m" in file.getvalue()) == terminal  # colours stay


def test_a_progress_bar_still_moves_the_cursor() -> None:
    file = io.StringIO()
    with Progress(console=TerminalConsole(file=file, width=80, force_terminal=True)) as progress:
        progress.add_task("training", total=3)
    assert "\x1b[?25l" in file.getvalue()
    assert r"\x1b" not in file.getvalue()


def test_names_of_metrics_and_runs_and_errors_print_no_control_characters(tmp_path) -> None:
    screen = make_screen(tmp_path / EVIL, width=1000)
    screen.logger.metrics(1, {EVIL: 1.0})
    screen.logger.completions(1, [{"prompt": "a", "output": "b", "sampling": EVIL, f"[/x]{EVIL}": 1.0}])
    screen.logger.metrics(2, PPO)
    screen.logger.close(ValueError(EVIL))
    assert "\x1b" not in screen.text
    assert "\x9b" not in screen.text
    assert screen.text.count(r"a\x1b[2Jb\x9b1mc") == 6
