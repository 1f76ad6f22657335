"""Kill runs with an environment while a round is sampled, resume them, and compare with an uninterrupted run.

    python tests/e2e/kill_episodes.py TRAINER KILLS

The run is killed inside the environment's answer to a turn: at KILLS of all turns of the run, evenly spaced. The
program prints a line of JSON with the number of steps that each killed run had finished, and ends with an exit code
other than 0 at the first run that cannot be resumed or differs. Runs are forks of this process, which has imported all
they need.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rig"), str(HERE.parent / "warm")]

import torch  # noqa: E402
from e2e_processes import assert_same_run  # noqa: E402
from kill_points import fork, succeed, wait  # noqa: E402

import rlcore  # noqa: E402
from rlcore.plugins import registry  # noqa: E402
from rlcore_testing.small import make_gpt2, make_tokenizer  # noqa: E402

TRAINERS: dict[str, dict[str, Any]] = {
    "grpo": {"rollouts": 8, "num_generations": 4},
    "ppo": {"rollouts": 8, "batch_size": 4, "epochs": 2},
    "rft": {"generations": 2, "prompts": 4, "batch_size": 4, "improve_steps": 2},
}
STEPS = 4
counted, lock = [0], threading.Lock()
kill_at: list[int] = []


class Moving:
    """A letter is to be written that moves with the letters written so far; two to four turns."""

    def reset(self, row: Any, *, seed: int) -> str:
        self.random = random.Random(seed)
        self.place, self.last = self.random.randrange(8), self.random.randint(1, 3)
        return "go"

    def step(self, turn: Any) -> Any:
        with lock:
            counted[0] += 1
            if counted[0] in kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        written = [ord(letter) - 97 for letter in turn.text]
        reward = sum(abs(letter - self.place) < 4 for letter in written) / 4
        self.place = (self.place + sum(written) + self.random.randrange(3)) % 8
        return {"messages": f" {chr(97 + self.place)} ", "reward": reward, "done": turn.index >= self.last}


def train(trainer: str, root: Path, **run: Any) -> None:
    torch.set_num_threads(1)
    # A fork has the plugins of this process, which the search for them would find again.
    registry._memo.update({(os.getpid(), selected): found for (_, selected), found in registry._memo.items()})
    rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": trainer, **TRAINERS[trainer]}, environment=Moving,
        prompts=["ab", "c", "de f", "g"], eval_prompts=["a", "bc"], gen={"max_new_tokens": 3}, loggers=[],
        eval={"every": 2}, checkpoint={"every": 1, "keep_last": 1}, data={"episodes": {"cohorts": 2}},
        run={"name": "run", "root": str(root), "steps": STEPS, "report": False, "rollouts": "all", **run},
    )  # fmt: skip


def finished_steps(root: Path) -> int:
    """Return the step of the newest checkpoint of a killed run."""
    return max((int(path.name) for path in (root / "run" / "checkpoints").glob("[0-9]*")), default=0)


def main() -> None:
    trainer, kills = sys.argv[1], int(sys.argv[2])
    folder = Path(tempfile.mkdtemp(prefix="kill_episodes-"))
    log, whole, counts = folder / "output.txt", folder / "whole", folder / "counts.txt"
    train(trainer, folder / "imports", steps=1)
    counted[0] = 0
    gc.freeze()

    def train_whole() -> None:
        train(trainer, whole)
        counts.write_text(str(counted[0]))

    succeed(train_whole, log)
    turns, found = int(counts.read_text()), []
    for number in range(kills):
        root = folder / f"killed-{number}"
        kill_at[:] = [1 + (2 * number + 1) * turns // (2 * kills)]
        code = wait(fork(lambda root=root: train(trainer, root), log))
        assert code == -signal.SIGKILL, f"{code}: {log.read_text()}"
        kill_at.clear()
        found.append(finished_steps(root))
        succeed(lambda root=root: train(trainer, root, resume="auto"), log)
        assert_same_run(whole / "run", root / "run")
    print(json.dumps({"turns": turns, "finished_steps": found}))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
