"""Fuzz tests of the command line: any words end with an exit code and a message, and leave the folder as it was."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzzing import no_hang
from hypothesis import given
from hypothesis import strategies as st

from rlcore.cli import main

WORDS = st.sampled_from(
    ["train", "list-plugins", "show", "rollouts", "doctor", "new-plugin", "plan", "--help", "-h", "--version",
     "--commands", "--json", "--check", "--out", "--", "-", "--x=1", "-q", "x.yaml", "missing.yaml", "sft", "ppo",
     "trainer:ppo", "a=1", "run.steps=x", "trainer.name=poo", "run.root=\0", "=", "", "é", "\x1b[31m", "a" * 300,
     "trainers", "loggers:jsonl"]
)  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=8), max_size=4))
def test_any_command_line_ends_with_an_exit_code_and_a_message(
    here: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (here / "x.yaml").write_text("trainer: {name: poo}\n")
    with no_hang():
        try:
            code = main(words)
        except SystemExit as stop:  # argparse ends so
            code = stop.code
    out, err = capfd.readouterr()
    assert code in (0, 1, 2), words
    assert "Traceback" not in out + err, words
    assert "\x1b[31m" not in err, words
    if code:
        assert err.strip(), words
