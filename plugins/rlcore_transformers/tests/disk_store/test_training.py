"""Tests that training with the disk store gives the same metrics and weights as with the memory store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rlcore
from rlcore_ppo.trainer import PPOTrainer
from rlcore_testing.rig.compare_runs import MEASURED
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward


def train(folder: Path, name: str, store: Any, **run: Any) -> Path:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward,
        trainer={"name": "ppo", "rollouts": 10, "batch_size": 4, "micro_batch_size": 3, "epochs": 2, "kl_coef": 0.1,
                 "optimizer": {"lr": 3e-3}},
        gen={"max_new_tokens": 6}, store=store, loggers=[], checkpoint={"every": 1, "keep_last": 10},
        eval={"at_end": False},
        run={"root": str(folder), "name": name, "steps": 5, **run},
    )  # fmt: skip
    return result.run_dir


def left_by(run: Path) -> tuple[list[dict[str, float]], dict[str, torch.Tensor]]:
    """Return the metrics of a run, without timings, and its final weights."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: value for key, value in row.items() if not key.startswith(MEASURED)} for row in rows]
    return metrics, load_file(run / "model/model.safetensors")


def assert_same_run(one: Path, other: Path) -> None:
    (metrics, weights), (others, other_weights) = left_by(one), left_by(other)
    assert metrics == others
    assert weights.keys() == other_weights.keys()
    for name, weight in weights.items():
        assert torch.equal(weight, other_weights[name]), name


@pytest.mark.slow
def test_ppo_learns_the_same_from_disk_and_resumes_to_the_same(tmp_path: Path) -> None:
    disk = {"name": "disk", "path": str(tmp_path / "rollouts")}
    expected = train(tmp_path, "memory", "memory")
    assert_same_run(expected, train(tmp_path, "disk", disk))
    train(tmp_path, "parts", disk, steps=2)
    assert_same_run(expected, train(tmp_path, "parts", disk, resume="auto"))
    assert_same_run(expected, train(tmp_path, "temporary", "disk"))
    assert not list((tmp_path / "rollouts").iterdir())


@pytest.mark.slow
def test_rollouts_that_wait_through_a_checkpoint_are_learned_from_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Train with rounds that accumulate, so that a checkpoint is written while the store contains rollouts."""
    state_dict, load_state_dict = PPOTrainer.state_dict, PPOTrainer.load_state_dict
    waited = []

    def steps(self: PPOTrainer) -> Iterator[dict[str, float]]:
        while True:
            metrics = self.rollout()
            waited.append(len(self.store))
            if len(self.store) == 20:
                metrics |= self.update(self.store.take())
                self.num_rounds += 1
            yield metrics

    def load(self: PPOTrainer, state: dict[str, Any]) -> None:
        load_state_dict(self, state)
        self.store.load_state_dict(state["store"])

    monkeypatch.setattr(PPOTrainer, "steps", steps)
    monkeypatch.setattr(PPOTrainer, "state_dict", lambda self: state_dict(self) | {"store": self.store.state_dict()})
    monkeypatch.setattr(PPOTrainer, "load_state_dict", load)
    expected = train(tmp_path, "memory", "memory")
    assert waited == [10, 20, 10, 20, 10]
    disk = {"name": "disk", "path": str(tmp_path / "rollouts")}
    assert_same_run(expected, train(tmp_path, "disk", disk))
    train(tmp_path, "parts", disk, steps=3)
    waited.clear()
    assert_same_run(expected, train(tmp_path, "parts", disk, resume="auto"))
    assert waited == [20, 10]
    train(tmp_path, "mixed", disk, steps=1)
    assert_same_run(expected, train(tmp_path, "mixed", "memory", resume="auto"))


@pytest.mark.slow
def test_kept_rounds_hold_the_rollouts_that_were_trained_on(tmp_path: Path) -> None:
    from datasets import Dataset

    run = train(tmp_path, "kept", {"name": "disk", "path": str(tmp_path / "rollouts"), "keep": 2})
    (folder,) = (tmp_path / "rollouts").iterdir()
    rounds = sorted((folder / "taken").iterdir())
    assert [path.name for path in rounds] == ["000003", "000004"]
    metrics, _ = left_by(run)
    trained = [row["reward/mean"] for row in metrics if "reward/mean" in row]
    for row, path in zip(trained[3:], rounds, strict=True):
        (file,) = path.iterdir()
        scores = Dataset.from_file(str(file))["scores"][:]
        assert sum(scores) / len(scores) == pytest.approx(row)
