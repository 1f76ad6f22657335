"""Completion offers the commands and arguments that the parsers have, those of plugins too, and never fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from dists import Site

from rlcore.plugins.builtin import COMMANDS

CORE = {name for name, _, _ in COMMANDS}
PLUGIN = """
from rlcore import hookimpl

@hookimpl
def register_commands(register):
    register("tabulate", "acme_plugin:report")
    register("broken", "acme_plugin:broken")

def report(parser):
    parser.add_argument("--sort", choices=["reward", "length"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("part", choices=["train", "eval"])
    return lambda arguments: 0

def broken(parser):
    raise ValueError
"""


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    made.install("acme", PLUGIN)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("rlcore tr", {"train"}),
        ("rlcore tab", {"tabulate"}),
        ("rlcore sf", {"sft"}),
        ("rlcore sft --model.rev", {"--model.revision"}),
        ("rlcore ppo --optimizer.l", {"--optimizer.lr"}),
        ("rlcore --", {"--commands", "--help", "--version"}),
        ("rlcore tabulate --", {"--help", "--json", "--sort"}),
        ("rlcore tabulate --sort ", {"reward", "length"}),
        ("rlcore tabulate --sort le", {"length"}),
        ("rlcore tabulate --json ", {"train", "eval"}),
        ("rlcore train --log-format ", {"plain", "explicit"}),
        ("rlcore train ru", set()),  # the name of a file, which bash completes
        ("rlcore broken --", set()),
        ("rlcore absent --", set()),
    ],
)
def test_completion_offers_what_may_stand_at_the_cursor(line: str, found: set[str], site: Site) -> None:
    done = site.python(
        "-m", "rlcore", "--complete", "rlcore", "", "", COMP_LINE=line + " more", COMP_POINT=str(len(line))
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(done.stdout.split()) == found


def test_all_commands_are_offered_where_nothing_is_typed(site: Site) -> None:
    done = site.python("-m", "rlcore", "--complete", COMP_LINE="rlcore ")
    assert set(done.stdout.split()) >= CORE | {"tabulate", "broken"}


def test_bash_completes_with_the_line_that_help_prints(site: Site) -> None:
    shown = " ".join(site.python("-m", "rlcore", "--help").stdout.split())
    assert 'complete -o default -C "rlcore --complete" rlcore' in shown
    syntax = subprocess.run(["bash", "-c", 'complete -o default -C "rlcore --complete" rlcore'], check=False)
    assert syntax.returncode == 0
