"""Kill training runs, resume them, and compare the result with that of an uninterrupted run, bit for bit.

    python tests/e2e/kill_runs.py sweep TRAINER [--every N] [--first K] [--phases created,overwritten,resumed]
    python tests/e2e/kill_runs.py random KILLS [--seed S] [--trainers sft,ppo]

`sweep` kills a run in state K, K + N, K + 2 N, ... of its files while it is created and finished, while it overwrites
another one, and while it is resumed; each file operation that changes them leads to another state. `random` kills runs
of all trainers at random times until there were KILLS of them; a run may be killed several times. Both print a line of
JSON for each trainer, and end with an exit code other than 0 at the first run that cannot be resumed or differs.

Runs are forks of this process, which has imported all they need.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "rig"), str(HERE.parent / "warm")]

import torch  # noqa: E402
from e2e_processes import assert_same_run  # noqa: E402
from e2e_scenarios import COMMON, PPO, SFT, WORDS, count_a, model_config, noisy_length  # noqa: E402
from kill_points import fork, killed_at, states, succeed, wait  # noqa: E402

import rlcore  # noqa: E402
import rlcore_testing.small  # noqa: E402
from rlcore.checkpoints.run_folder import ASIDE, DISCARDED, REPLACED  # noqa: E402
from rlcore.config import merge  # noqa: E402
from rlcore.plugins import registry  # noqa: E402

STEPS = 3
MEMORY = "/dev/shm"
LORA = {"type": "lora", "r": 2, "target_modules": ["c_attn"]}
OFTEN = {
    "gen": {"max_new_tokens": 3}, "eval": {"every": 2, "at_end": False}, "loggers": [],
    "checkpoint": {"every": 1, "keep_last": 1, "keep_best": 1, "metric": "eval/chars"},
}  # fmt: skip
SAMPLED = {"prompts": WORDS[:6], "eval_prompts": ["a", "bc"], "reward_fn": count_a, "metric_fn": noisy_length}
TRAINERS: dict[str, dict[str, Any]] = {
    "sft": SFT | {"model": {"path": model_config(0.1), "peft": LORA}},
    "ppo": PPO | SAMPLED | {"trainer": PPO["trainer"] | {"rollouts": 4}},
    "ilql": {
        "samples": SFT["samples"], "rewards": [len(word) for word in WORDS], "eval_prompts": ["a", "bc"],
        "metric_fn": noisy_length, "trainer": {"name": "ilql", "batch_size": 5, "sync_every": 2},
    },
    "rft": SAMPLED | {
        "trainer": {"name": "rft", "generations": 2, "batch_size": 4, "improve_steps": 2, "start_percentile": 0.2}
    },
}  # fmt: skip


def train(trainer: str, root: Path, **run: Any) -> None:
    torch.set_num_threads(1)
    # A fork has the plugins of this process, which the search for them would find again.
    registry._memo.update({(os.getpid(), selected): found for (_, selected), found in registry._memo.items()})
    given = (
        {"model": {"path": model_config(0.1)}}
        | TRAINERS[trainer]
        | {"tokenizer": rlcore_testing.small.make_tokenizer()}
    )
    given = merge(COMMON | given, OFTEN)
    given["run"] = {"name": "run", "root": str(root), "steps": STEPS, **run}
    rlcore.train(given.pop("model"), **given)


def differences(whole: Path, root: Path) -> None:
    """Compare a run with the uninterrupted one, also in which files there are."""
    assert_same_run(whole / "run", root / "run")
    names = [sorted(_names(folder / "run")) for folder in (whole, root)]
    assert names[0] == names[1], set(names[0]) ^ set(names[1])


def _names(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith(".lock"))


def _is_overwritten(folder: Path) -> bool:
    """Return whether nothing is left of the run that was overwritten, and the new one, without steps, is finished."""
    names = {path.name for path in folder.iterdir()}
    return "model" in names and not names & {"metrics.jsonl", ASIDE, REPLACED, DISCARDED}


class Sweep:
    """Kills the runs of one trainer in every state of their files, or in the part of these that `chosen` selects."""

    def __init__(self, trainer: str, folder: Path, chosen: slice) -> None:
        self.trainer, self.folder, self.chosen = trainer, folder, chosen
        self.log = folder / "output.txt"
        self.whole, self.part = folder / "whole", folder / "part"
        self.train(self.whole)
        self.train(self.part, steps=STEPS - 1)

    def train(self, root: Path, **run: Any) -> None:
        self.log.unlink(missing_ok=True)
        succeed(lambda: train(self.trainer, root, **run), self.log)

    def points(self, begin: Path | None, **run: Any) -> list[int]:
        """Return the file operations to kill a run at that starts in a copy of the folder `begin`."""
        root = self.folder / "states"
        if begin is not None:
            shutil.copytree(begin, root)
        found = states(root, lambda: train(self.trainer, root, **run), self.log)
        shutil.rmtree(root)
        return found[self.chosen]

    def kill(self, begin: Path | None, ways_on: list[dict[str, Any]], **run: Any) -> int:
        """Kill runs that start in a copy of the folder `begin`, continue each in all `ways_on`; return their number."""
        count = 0
        for point in self.points(begin, **run):
            root = self.folder / f"killed-{point}"
            if begin is not None:
                shutil.copytree(begin, root)
            assert killed_at(point, root, lambda root=root: train(self.trainer, root, **run), self.log), point
            for number, on in enumerate(ways_on):
                again = self.folder / f"resumed-{number}"
                if root.exists():
                    shutil.copytree(root, again)
                try:
                    self.train(again, **on)
                    differences(self.whole, again)
                except BaseException as error:
                    error.add_note(
                        f"{self.trainer}: killed before operation {point} of {run}, continued with {on}: {root}"
                    )
                    raise
                shutil.rmtree(again)
            count += 1
            if "overwrite" in run and _is_overwritten(root / "run"):
                break  # the new run goes on like any other
            shutil.rmtree(root, ignore_errors=True)
        return count

    def kill_in(self, phase: str) -> int:
        auto, over = {"resume": "auto"}, {"overwrite": True}
        if phase == "created":
            return self.kill(None, [auto], **auto)
        if phase == "overwritten":
            return self.kill(self.whole, [auto, over], steps=0, **over)
        return self.kill(self.part, [auto], **auto)


def kill_at_random(trainers: list[str], kills: int, seed: int, folder: Path) -> dict[str, int]:
    """Kill runs at random times; return the number of kills of each trainer."""
    choose, counts, log = random.Random(seed), dict.fromkeys(trainers, 0), folder / "output.txt"
    seconds = {}
    for trainer in trainers:
        begun = time.monotonic()
        succeed(lambda trainer=trainer: train(trainer, folder / trainer), log)
        seconds[trainer] = time.monotonic() - begun
    for trainer in itertools.cycle(trainers):
        root, code, often = folder / "killed", -signal.SIGKILL, choose.randint(1, 4)
        while code == -signal.SIGKILL:
            log.unlink(missing_ok=True)
            child = fork(lambda trainer=trainer, root=root: train(trainer, root, resume="auto"), log)
            if often and sum(counts.values()) < kills:
                often -= 1
                time.sleep(choose.uniform(0, seconds[trainer]))
                os.kill(child, signal.SIGKILL)
            code = wait(child)
            counts[trainer] += code == -signal.SIGKILL
        assert code == 0, log.read_text()
        differences(folder / trainer, root)
        shutil.rmtree(root)
        if sum(counts.values()) >= kills:
            return counts
    raise AssertionError("unreachable")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill training runs, resume them, and compare the results.")
    commands = parser.add_subparsers(dest="command", required=True)
    sweep = commands.add_parser("sweep", help="kill in each state of the files")
    sweep.add_argument("trainer", choices=TRAINERS)
    sweep.add_argument("--every", type=int, default=1)
    sweep.add_argument("--first", type=int, default=1)
    sweep.add_argument("--phases", type=lambda text: text.split(","), default=["created", "overwritten", "resumed"])
    at_random = commands.add_parser("random", help="kill at random times")
    at_random.add_argument("kills", type=int)
    at_random.add_argument("--seed", type=int, default=0)
    at_random.add_argument("--trainers", type=lambda text: text.split(","), default=list(TRAINERS))
    asked = parser.parse_args()
    # A run syncs some 60 files, which takes longer on a disk than the rest of it.
    folder = Path(tempfile.mkdtemp(prefix="kill_runs-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    for trainer in [asked.trainer] if asked.command == "sweep" else asked.trainers:
        # The forks find all modules imported that a new run and a resumed one need.
        train(trainer, folder / "imports", overwrite=True)
        train(trainer, folder / "imports", resume="auto", steps=STEPS + 1)
    gc.freeze()  # so that garbage collection in the forks does not copy the libraries' memory
    begun = time.monotonic()
    if asked.command == "sweep":
        killer = Sweep(asked.trainer, folder, slice(asked.first - 1, None, asked.every))
        counts = {phase: killer.kill_in(phase) for phase in asked.phases}
        print(json.dumps({"trainer": asked.trainer, **counts, "seconds": round(time.monotonic() - begun)}))
    else:
        counts = kill_at_random(asked.trainers, asked.kills, asked.seed, folder)
        print(json.dumps({"kills": counts, "seed": asked.seed, "seconds": round(time.monotonic() - begun)}))
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
