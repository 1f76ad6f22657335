from __future__ import annotations

import json
from pathlib import Path

import pytest
from adapter_runs import train_two_steps

import rlcore
from rlcore.errors import ConfigError, RLCoreError
from rlcore_testing.small import make_llama, make_tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["none", "process"])
def test_grpo_trains_two_steps_on_a_mixture(tmp_path: Path, isolate: str) -> None:
    options = {"families": {"chain_sum": {"level": [0, 1]}, "gcd": {}}, "instructions": None, "questions": 2}
    result = train_two_steps(tmp_path, {"name": "reasoning_gym", **options}, isolate=isolate)
    assert result.metrics["episode/turns"] == 2.0
    ends = [result.metrics[f"eval/episode/{end}"] for end in ("done", "truncated")]
    assert sum(ends) == 1.0  # a last turn that its limit cuts is truncated
    rows = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    assert {name for name in result.metrics if name.startswith("environment/")} >= {"environment/chain_sum"}
    assert all("The next question" in row["transcript"][1]["content"] for row in rows)


def test_a_curriculum_moves_the_level(tmp_path: Path) -> None:
    options = {"name": "reasoning_gym", "families": "chain_sum", "instructions": None}
    moving = {"level": {"from": 0, "to": 2, "over": 2}}
    result = train_two_steps(tmp_path, options, curriculum=moving)
    rows = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    assert {(row["step"], row["environment/level"]) for row in rows} == {(1, 0.0), (2, 1.0)}
    assert result.metrics["eval/environment/level"] == 2.0
    with pytest.raises(ConfigError, match=r"curriculum\.level: has no effect"):
        train_two_steps(tmp_path / "own", {**options, "level": 1}, curriculum=moving)


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["none", "process"])
def test_rows_that_cannot_be_made_end_the_run_with_a_message(tmp_path: Path, isolate: str) -> None:
    few = {
        "families": {"chain_sum": {"options": {"max_terms": 2, "max_digits": 1}}},
        "train_rows": 3,
        "eval_rows": 2000,
    }
    with pytest.raises(RLCoreError, match="every question to train on is also one to evaluate on; lower eval_rows"):
        rlcore.train(
            make_llama(), tokenizer=make_tokenizer(), trainer="grpo", environment={"name": "reasoning_gym", **few},
            data={"episodes": {"isolate": isolate}}, run={"root": str(tmp_path), "report": False}, loggers=[],
        )  # fmt: skip
