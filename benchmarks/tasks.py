"""The tasks on which libraries are compared: prompts, samples per prompt and round, and the score of a text.

    python tasks.py FOLDER DATA         make the initial model of `reviews`: texts.py's, after 150 steps on reviews

`walks`: 140 walks per round, 7 from each of 20 starts. `reviews`: 128 film reviews per round, 8 from each of 16
beginnings of four words, up to 48 tokens; a review with a favourable word scores 1. Each round is trained on for four
epochs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.texts import make, read_pairs
from rlcore_tools.bench.case_reviews import favourable

TRAINING_ROWS, LR = 4800, 1e-3


@dataclass(frozen=True)
class Task:
    """Description of a round.

    Attributes:
        prompts: each is continued `samples` times per round.
        samples: continuations per prompt.
        max_new_tokens: maximum length of a continuation.
        score: function that scores a whole text, prompt included.
    """

    prompts: list[str]
    samples: int
    max_new_tokens: int
    score: Callable[[str], float]

    @property
    def rollouts(self) -> int:
        """Return the number of texts per round."""
        return len(self.prompts) * self.samples


def load_task(name: str, data: Path | None = None, *, graph_seed: int = 1000) -> Task:
    """Return the task called `name`; the data of `reviews` are in the folder `data`."""
    if name == "walks":
        from benchmarks.example import RandomWalks

        walks = RandomWalks(graph_seed)
        return Task(walks.starts, 7, 9, walks.optimality)
    if data is None:
        raise SystemExit("the reviews need --data, the folder they lie in")
    texts = [text for _, text in read_pairs("reviews", data, TRAINING_ROWS + 16)][TRAINING_ROWS:]
    return Task([" ".join(text.split()[:4]) for text in texts], 8, 48, lambda text: favourable([text])[0])


def make_reviewer(folder: str, data: Path) -> None:
    """Train a model to write texts similar to film reviews, which end with EOS."""
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
