"""The tasks on which libraries are compared: prompts, how many samples of each make a round, what a text is worth.

    python tasks.py FOLDER DATA         make the starting model of `reviews`: texts.py's, after 150 steps on the reviews

`walks`: 140 walks a round, 7 from each of 20 starts. `reviews`: 128 film reviews a round, 8 from each of 16 beginnings
of four words, up to 48 tokens; one with a favourable word in it is worth 1. A round is learned from four times over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from texts import make, read_pairs

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples"))

FAVOURABLE = {"good", "great", "best", "funny", "fun", "moving", "charming", "beautiful", "perfect", "love"}
TRAINING_ROWS, LR = 4800, 1e-3


@dataclass(frozen=True)
class Task:
    """Say what a round is.

    Attributes:
        prompts: each is continued `samples` times a round.
        samples: continuations of a prompt.
        max_new_tokens: of a continuation.
        score: what a whole text, prompt included, is worth.
    """

    prompts: list[str]
    samples: int
    max_new_tokens: int
    score: Callable[[str], float]

    @property
    def rollouts(self) -> int:
        """Count the texts of a round."""
        return len(self.prompts) * self.samples


def load_task(name: str, data: Path | None = None, *, graph_seed: int = 1000) -> Task:
    """Return the task called `name`; `reviews` lie in the folder `data`."""
    if name == "walks":
        from walks import RandomWalks

        walks = RandomWalks(graph_seed)
        return Task(walks.starts, 7, 9, walks.optimality)
    if data is None:
        raise SystemExit("the reviews need --data, the folder they lie in")
    texts = [text for _, text in read_pairs("reviews", data, TRAINING_ROWS + 16)][TRAINING_ROWS:]
    return Task([" ".join(text.split()[:4]) for text in texts], 8, 48, favour)


def favour(text: str) -> float:
    """Return 1 where a favourable word occurs, else 0."""
    return float(not FAVOURABLE.isdisjoint(text.split()))


def make_reviewer(folder: str, data: Path) -> None:
    """Train a model to write something like film reviews, which end of themselves."""
    import rlcore

    texts = [text for _, text in read_pairs("reviews", data, TRAINING_ROWS)]
    with TemporaryDirectory() as scratch:
        make(f"{scratch}/start", data)
        sft = {"name": "sft", "optimizer": {"lr": LR}}
        run = {"root": scratch, "name": "sft"}
        off = {"at_end": False}
        result = rlcore.train(
            f"{scratch}/start", trainer=sft, samples=texts, run=run, eval=off, checkpoint=off, loggers=[]
        )
        result.save_pretrained(folder)


if __name__ == "__main__":
    make_reviewer(sys.argv[1], Path(sys.argv[2]))
