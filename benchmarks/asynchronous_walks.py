"""Asynchronous rounds on random walks: what they learn, and how long a round takes with a sampler that waits.

    OMP_NUM_THREADS=1 python -m benchmarks.asynchronous_walks learn FOLDER [--seeds 0 1 2] [--trainers ppo]
    OMP_NUM_THREADS=1 python -m benchmarks.asynchronous_walks time FOLDER [--rounds 8]

`learn` trains PPO, GRPO and RFT with the settings of docs/examples (graph seed 1000), `run.asynchronous` 0 and one
round of steps (1, and 4 for RFT) in turn, and prints the mean optimality of 1000 walks sampled after the last step.
`time` lets every call of the sampler wait, as an engine far away would, and prints the median seconds of a round; the
gain is largest where the wait is as long as learning. FOLDER keeps the starting model, which hand_ppo.py makes.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import rlcore
from benchmarks.hand_ppo import make_base
from benchmarks.learning_runs import trainer_options
from benchmarks.tasks import load_task
from rlcore_transformers.sampling.sampler import DefaultSampler

GRAPH = 1000
STEPS = {"ppo": 25, "grpo": 40, "rft": 32}
PER_ROUND = {"ppo": 1, "grpo": 1, "rft": 4}
"""Steps of a round."""
CORRECTED = {"is_correction": "token_truncate"}


def options_of(trainer: str, *, ahead: int, rate: float = 1.0) -> dict[str, Any]:
    """Return the trainer's options in docs/examples, with importance weights if the run is asynchronous.

    Args:
        trainer: its name.
        ahead: `run.asynchronous`.
        rate: factor of the learning rate.
    """
    if trainer == "rft":
        from randomwalks_rft import RFT

        options = dict(RFT)
    else:
        options = trainer_options(trainer) | {"name": trainer} | (CORRECTED if ahead else {})
    return options | {"optimizer": options["optimizer"] | {"lr": rate * options["optimizer"]["lr"]}}


def train(
    folder: Path, trainer: str, *, seed: int, ahead: int, steps: int, samples_at_end: int, rate: float = 1.0
) -> Any:
    """Train from the starting model, and return the result of `rlcore.train`."""
    base, task = folder / f"graph-{GRAPH}", load_task("walks", graph_seed=GRAPH)
    if not base.exists():
        make_base(str(base), graph_seed=GRAPH)
    with TemporaryDirectory() as root:
        result = rlcore.train(
            str(base),
            trainer=options_of(trainer, ahead=ahead, rate=rate),
            reward_fn=lambda samples: [task.score(walk) for walk in samples],
            prompts=task.prompts * (task.samples if trainer == "ppo" else 1),
            eval_prompts=task.prompts * samples_at_end or None,
            gen={"max_new_tokens": task.max_new_tokens},
            eval={"at_end": samples_at_end > 0, "batch_size": 1000},
            checkpoint={"at_end": False},
            loggers=[],
            run={"root": root, "steps": steps, "seed": seed, "asynchronous": ahead, "report": False},
        )  # fmt: skip
        lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return result, [json.loads(line) for line in lines]


def learn(folder: Path, trainers: list[str], seeds: list[int], rate: float, steps: int | None) -> None:
    """Print the optimality at the end of each run."""
    for trainer in trainers:
        for seed in seeds:
            for ahead in (0, PER_ROUND[trainer]):
                result, lines = train(
                    folder, trainer, seed=seed, ahead=ahead, steps=steps or STEPS[trainer], samples_at_end=50, rate=rate
                )
                ages = [line["age/max"] for line in lines if "age/max" in line]
                found = {"optimality": result.metrics["eval/reward/mean"], "age_max": max(ages, default=None)}
                print(json.dumps({"trainer": trainer, "seed": seed, "asynchronous": ahead, **found}), flush=True)


@contextmanager
def waiting(wait_s: float) -> Iterator[None]:
    """Let every call of the sampler `default` wait inside the block."""
    call = DefaultSampler.__call__

    def late(self: Any, *given: Any, **named: Any) -> Any:
        time.sleep(wait_s)
        return call(self, *given, **named)

    DefaultSampler.__call__ = late  # type: ignore[method-assign]
    try:
        yield
    finally:
        DefaultSampler.__call__ = call  # type: ignore[method-assign]


def measure(folder: Path, trainers: list[str], rounds: int, wait_s: float) -> None:
    """Print the median seconds of a round, in turn without and with a round that is sampled ahead."""
    for trainer in trainers:
        size = PER_ROUND[trainer]
        for ahead in (0, size, 0, size):
            with waiting(wait_s):
                _, lines = train(folder, trainer, seed=0, ahead=ahead, steps=rounds * size, samples_at_end=0)
            seconds = [line["time/step_s"] for line in lines if "time/step_s" in line]
            spans = [sum(seconds[i : i + size]) for i in range(size, len(seconds), size)]  # without the first round
            idle = [line["time/idle_s"] for line in lines if "time/idle_s" in line]
            found = {"wait_s": wait_s, "round_s": median(spans), "idle_s": sum(idle) / rounds if idle else None}
            print(json.dumps({"trainer": trainer, "asynchronous": ahead, **found}), flush=True)


def main() -> None:
    """Read the command line, and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("learn", "time"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trainers", nargs="+", choices=tuple(STEPS), default=list(STEPS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=1.0, help="factor of the learning rates")
    parser.add_argument("--steps", type=int, help="steps of a run that learns; default: those of docs/examples")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--wait", type=float, default=1.0, help="seconds for which the sampler waits in each call")
    options = parser.parse_args()
    if options.what == "learn":
        learn(options.folder, options.trainers, options.seeds, options.rate, options.steps)
    else:
        measure(options.folder, options.trainers, options.rounds, options.wait)


if __name__ == "__main__":
    main()
