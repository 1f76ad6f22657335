"""Rewards whose names occur late in an evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import rlcore
from rlcore.protocols import Step, Turn
from rlcore_testing.small import make_gpt2, make_tokenizer


class Door:
    """Only the last row has a reward with a name."""

    def reset(self, row: dict[str, int], *, seed: int) -> str:
        self.number = row["number"]
        return "go"

    def step(self, turn: Turn) -> Step:
        return Step(reward={"won": 3.0} if self.number == 2 else 0.0, done=True)


def test_a_reward_that_the_last_batch_of_an_evaluation_introduces_is_a_mean_over_all_episodes(tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), trainer={"name": "reinforce", "rollouts": 4}, environment=Door, prompts=[{"number": 0}] * 4,
        eval_prompts=[{"number": number} for number in range(3)], eval={"at_start": True, "batch_size": 1}, loggers=[],
        gen={"max_new_tokens": 2}, tokenizer=make_tokenizer(),
        run={"root": str(tmp_path), "name": "run", "steps": 1, "report": False},
    )  # fmt: skip
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/environment/won"] for line in lines if "eval/environment/won" in line] == [1.0, 1.0]
    rows = [json.loads(line) for line in (result.run_dir / "completions.jsonl").read_text().splitlines()]
    assert [row["environment/won"] for row in rows] == [0.0, 0.0, 3.0] * 2
