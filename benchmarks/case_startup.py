"""Benchmark case: start-up time of the commands, against TRL's if it is installed."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import peers_python
from benchmarks.places import Unavailable
from rlcore_tools.bench.duel import Duel

TITLE = "start-up in fresh processes, against TRL's command line"
HELP, IMPORT = ["trl", "--help"], ["python", "-c", "import rlcore"]
FASTER = 0.1
COMMANDS = (
    # name, ours, theirs, bound of the ratio, bound of our seconds
    ("rlcore --help", ["rlcore", "--help"], HELP, FASTER, None),
    ("rlcore list-plugins", ["rlcore", "list-plugins"], HELP, FASTER, 0.25),
    ("import rlcore", IMPORT, HELP, FASTER, None),
    ("import rlcore, against import trl", IMPORT, ["python", "-c", "import trl"], None, None),
    ("rlcore show sft, against trl sft --help", ["rlcore", "show", "sft"], ["trl", "sft", "--help"], FASTER, None),
    ("an empty program: no command can be faster", ["python", "-c", "pass"], HELP, None, None),
)


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the commands; without TRL, only our times are measured."""
    try:
        python = peers_python()
    except Unavailable:
        python = None
    return [
        Duel(
            name,
            ours=["time_command.py", *ours],
            theirs=None if python is None else ["time_command.py", *theirs],
            theirs_python=python,
            cpu_figure="cpu_s",
            goal=None if python is None else goal,
            own_goal=own_goal,
        )
        for name, ours, theirs, goal, own_goal in COMMANDS
    ]
