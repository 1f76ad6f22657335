"""Seeds of environments: the same for a row whenever it is played, or another one in each step."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from env_games import make_player, make_policy, read_prompts
from episode_runs import constant, lines, run

from rlcore.errors import ConfigError, RLCoreError
from rlcore.protocols import Step, Turn

ROWS = [{"prompt": "a"}, {"prompt": "b", "seed": 7}]


class Dice:
    """It shows its seed, on which its reward depends."""

    def reset(self, row: Any, *, seed: int) -> str:
        self.seed = seed
        return f"go {seed}"

    def step(self, turn: Turn) -> Step:
        return Step(reward=float((self.seed + len(turn.text)) % 3), done=True)


def train(folder: Path, seeds: str, *, steps: int = 3, rows: Any = ROWS, **how: Any) -> Any:
    """Two groups of four episodes in each step, one of each row."""
    how = {"root": str(folder), "name": "run", "steps": steps, "report": False, "rollouts": "all", **how}
    trainer = {"name": "grpo", "rollouts": 8, "num_generations": 4, "optimizer": {"lr": 1e-2}}
    return run(
        folder, environment=Dice, prompts=rows, eval_prompts=["c", "d"], trainer=trainer, run=how, reward_fn=constant,
        data={"episodes": {"seeds": seeds} if seeds != "fixed" else {}}, eval={"every": 1},
    )  # fmt: skip


def seen(result: Any, name: str = "rollouts.jsonl") -> dict[str, list[set[str]]]:
    """Return for each row, by its prompt, the seeds that its episodes showed in each step."""
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for row in lines(result, name):
        shown = str(row["messages"][-1]["content"] if len(row["messages"]) > 1 else row["transcript"][0]["content"])
        found[row["messages"][0]["content"]][row["step"]].add(shown)
    return {prompt: list(steps.values()) for prompt, steps in found.items()}


def test_a_row_has_one_seed_for_the_whole_run_by_default(tmp_path: Path) -> None:
    for steps in seen(train(tmp_path, "fixed")).values():
        assert len(steps) == 3
        assert len(set.union(*steps)) == 1


def test_fresh_seeds_are_others_in_each_step_and_the_same_within_a_group(tmp_path: Path) -> None:
    result = train(tmp_path, "fresh")
    found = seen(result)
    assert [len(seeds) for seeds in found["a"]] == [1, 1, 1]
    assert len(set.union(*found["a"])) == 3
    assert found["b"] == [{"go 7"}] * 3  # the seed of its own
    evaluated = seen(result, "completions.jsonl")
    assert all(len(steps) == 3 and len(set.union(*steps)) == 1 for steps in evaluated.values())


@pytest.mark.slow
def test_a_run_with_fresh_seeds_goes_on_exactly_where_it_was_stopped(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole", "fresh", steps=4)
    train(tmp_path / "parts", "fresh", steps=2)
    parts = train(tmp_path / "parts", "fresh", steps=4, resume="auto")
    assert lines(whole, "rollouts.jsonl") == lines(parts, "rollouts.jsonl")
    mine, other = (dict(each.policy.module.named_parameters()) for each in (whole, parts))
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    with pytest.raises(RLCoreError, match=r"data\.episodes\.seeds"):
        train(tmp_path / "parts", "fixed", steps=5, resume="auto")


def test_fresh_seeds_that_reach_no_row_are_refused() -> None:
    player = make_player(Dice, data={"episodes": {"seeds": "fresh"}})
    with pytest.raises(ConfigError, match=r"data\.episodes\.seeds = 'fresh': has no effect, since every row"):
        read_prompts(player, make_policy(), [{"prompt": "a", "seed": 1}])
