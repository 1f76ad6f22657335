"""A game that ends or interrupts its process in the middle of an episode; as a script, a run of it in this folder."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from typing import Any

from env_games import Echo
from episode_runs import TRAINERS, run

from rlcore.protocols import Step, Turn

AT = "RLCORE_TEST_SIGNAL_AT"
"""Environment variable with a signal, and the numbers of the turns, among all, that send it to the process."""
turns = itertools.count(1)


class Interrupts(Echo):
    """It sends the signal in these turns."""

    def step(self, turn: Turn) -> Step:
        name, *numbers = os.environ.get(AT, "SIGTERM").split()
        if str(next(turns)) in numbers:
            os.kill(os.getpid(), signal.Signals[name])
        return super().step(turn)


def train(folder: Path, *, steps: int = 4, resume: str = "never") -> Any:
    """Rounds of 8 episodes with 3 turns each, so that a round has 24 turns; a checkpoint follows each."""
    return run(
        folder, environment="interrupted_game:Interrupts", trainer={"name": "grpo", **TRAINERS["grpo"]},
        data={"episodes": {"seeds": "fresh"}}, checkpoint={"every": 1}, eval={"every": 0, "at_end": False},
        run={"root": str(folder), "name": "run", "steps": steps, "report": False, "resume": resume, "rollouts": "all"},
    )  # fmt: skip


if __name__ == "__main__":
    train(Path.cwd())
