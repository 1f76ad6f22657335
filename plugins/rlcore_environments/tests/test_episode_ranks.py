"""Two processes play the episodes of one, and learn the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from env_games import TEMPLATE, Echo

import rlcore
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.small import make_llama, make_tokenizer


class Fails(Echo):
    """Some rows fail at the second turn."""

    def step(self, turn: Any) -> Any:
        if turn.index == 1 and self.seed == 3:
            raise OSError("away")
        return super().step(turn)


def trained(folder: str, trainer: dict[str, Any]) -> dict[str, Any]:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    result = rlcore.train(
        make_llama(), tokenizer=tokenizer, trainer=trainer, environment=Fails,
        prompts=[{"prompt": "ab", "seed": seed} for seed in range(4)], gen={"max_new_tokens": 3}, loggers=[],
        run={"root": folder, "name": "run", "steps": 2, "report": False, "rollouts": "all"},
    )  # fmt: skip
    weights = [each.detach().flatten().tolist() for each in result.policy.module.parameters()]
    lines = (result.run_dir / "rollouts.jsonl").read_text().splitlines() if result.run.ranks.is_main else []
    return {"weights": weights, "rows": list(map(json.loads, lines)), "metrics": dict(result.metrics)}


STEADY = {"lr": 1e-2, "eps": 1e-3}
"""Options with which Adam does not amplify rounding errors."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "trainer",
    [
        {"name": "grpo", "rollouts": 8, "num_generations": 2, "optimizer": STEADY},
        pytest.param(
            {
                "name": "grpo",
                "rollouts": 8,
                "num_generations": 2,
                "credit": "turn",
                "turn_discount": 0.5,
                "optimizer": STEADY,
            },
            marks=pytest.mark.nightly,
        ),
        {"name": "ppo", "rollouts": 8, "batch_size": 4, "epochs": 1, "optimizer": STEADY},
    ],
    ids=["grpo", "grpo by turns", "ppo"],
)
def test_two_processes_play_and_learn_as_one(trainer: dict[str, Any], tmp_path: Path) -> None:
    one = call_in_new_process(
        "test_episode_ranks:trained", {"folder": str(tmp_path / "one"), "trainer": trainer}, what="one"
    )
    two = call_on_two_ranks(
        "test_episode_ranks:trained", {"folder": str(tmp_path / "two"), "trainer": trainer}, what="two"
    )
    spoken = [[(row["prompt"], row["output"], row["reward"]) for row in each["rows"]] for each in (one, two)]
    assert spoken[0] == spoken[1]
    assert any(row["reward"] is None for row in one["rows"])
    for mine, other in zip(one["weights"], two["weights"], strict=True):
        assert other == pytest.approx(mine, abs=1e-5)
    for name in ("episode/turns", "episode/failed", "reward/mean", "reward/unscored", "environment/letters"):
        assert two["metrics"][name] == pytest.approx(one["metrics"][name], abs=1e-6)
