"""Tests that runs of ILQL sample with its weight of the Q-heads' advantages where `gen.beta` is not set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.errors import ConfigError
from rlcore.training.api import Result
from rlcore_testing.small import make_gpt2, make_tokenizer

# After `q`, `b` is three times as frequent as `a`, which has the higher reward.
SAMPLES, REWARDS = [["q", "a"], ["q", "b"], ["q", "b"], ["q", "b"]], [1.0, -1.0, -1.0, -1.0]
LEARNS = {"target_rate": 0.5, "optimizer": {"lr": 0.01, "weight_decay": 0.0}}


def train(folder: Path, steps: int, trainer: dict[str, Any], **sections: Any) -> Result:
    run = {"root": str(folder), "name": "run", "steps": steps, **sections.pop("run", {})}
    rewards = {} if trainer["name"] == "sft" else {"rewards": REWARDS}
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"batch_size": 4, **trainer}, samples=SAMPLES, **rewards,
        reward_fn=lambda outputs: [float(output == "a") for output in outputs], eval_prompts=["q"] * 8, loggers=[],
        run=run, **sections,
    )  # fmt: skip


@pytest.mark.slow
def test_by_default_evaluations_and_samples_of_the_result_follow_q(tmp_path: Path) -> None:
    result = train(tmp_path, 120, {"name": "ilql", **LEARNS}, gen={"temperature": 0.0, "max_new_tokens": 3})
    assert result.run.config.gen.beta == 16
    assert "beta: 16.0" in (result.run_dir / "config.yaml").read_text(encoding="utf-8")
    assert result.metrics["eval/reward/mean"] == 1.0
    assert result.generate(["q"]) == ["a"]
    assert result.generate(["q"], beta=0.0) == ["b"]


@pytest.mark.slow
def test_an_explicit_beta_of_zero_imitates_the_samples(tmp_path: Path) -> None:
    gen = {"temperature": 0.0, "max_new_tokens": 3, "beta": 0.0}
    result = train(tmp_path, 120, {"name": "ilql", **LEARNS}, gen=gen, eval={"gen": {"beta": [0, 16]}})
    assert result.run.config.gen.beta == 0
    assert result.generate(["q"]) == ["b"]
    assert result.metrics["eval/reward/mean@beta=0"] == 0.0
    assert result.metrics["eval/reward/mean@beta=16"] == 1.0


def test_other_trainers_sample_from_the_policy_alone(tmp_path: Path) -> None:
    result = train(tmp_path, 1, {"name": "sft"}, gen={"max_new_tokens": 3})
    assert result.run.config.gen.beta == 0
    assert result.run.config.gen.is_plain


def test_a_run_that_was_begun_at_zero_is_not_continued_at_another_beta_without_a_word(tmp_path: Path) -> None:
    train(tmp_path, 1, {"name": "ilql"}, gen={"beta": 0.0, "max_new_tokens": 3})
    with pytest.raises(ConfigError, match=r"gen\.beta was 0\.0, is 16\.0"):
        train(tmp_path, 2, {"name": "ilql"}, gen={"max_new_tokens": 3}, run={"resume": "auto"})
    more = train(tmp_path, 2, {"name": "ilql"}, gen={"beta": 0.0, "max_new_tokens": 3}, run={"resume": "auto"})
    assert more.run.step == 2
