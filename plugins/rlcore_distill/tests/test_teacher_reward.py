"""The reward `teacher` in runs of ppo and grpo, against plain models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from distill_making import other_tokenizer, teacher_folder
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, RewardError
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_distill.config import TeacherRewardConfig
from rlcore_distill.teacher_reward import TeacherReward
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer


def build(folder: Path, *, reward: Any = None, temperature: float = 0.7, **sections: Any) -> Any:
    settings = {
        "trainer": {"name": "grpo", "rollouts": 8, "num_generations": 2}, "loggers": [],
        "gen": {"max_new_tokens": 5, "temperature": temperature}, "run": {"root": str(folder), **sections},
    }  # fmt: skip
    teacher = {"name": "teacher", "path": teacher_folder(), **(reward or {})}
    given = Inputs(model=make_llama(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=teacher)
    return assemble(structure(TrainConfig, settings, where="test"), given, "test").trainer


def logprobs(model: Any, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, :-1] / temperature
    return logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


@pytest.mark.parametrize("subtract", [True, False])
def test_each_token_gets_the_log_ratio_of_teacher_and_policy(tmp_path: Path, subtract: bool) -> None:
    trainer = build(tmp_path, reward={"subtract_policy": subtract})
    run = trainer.run
    batch = run.rollout(run.prompts[:5]).own
    teacher, policy = AutoModelForCausalLM.from_pretrained(teacher_folder()), make_llama()
    for i in range(5):
        row, chosen = batch.tokens[i][batch.mask[i]], batch.action_mask[i][batch.mask[i]][1:]
        expected = logprobs(teacher, row, 0.7) - (logprobs(policy, row, 0.7) if subtract else 0.0)
        found = batch["dense"][i][batch.mask[i]][1:]
        assert torch.allclose(found[chosen], expected[chosen], atol=1e-4)
        assert not found[~chosen].any()
        assert float(batch["scores"][i]) == pytest.approx(float(expected[chosen].sum()), abs=1e-4)


def test_prompts_are_scored_as_the_tokens_of_the_run(tmp_path: Path) -> None:
    """With BOS in front of prompts, which the text that rewards receive does not have."""
    trainer = build(tmp_path)
    run = trainer.run
    marked = [rlcore.types.Prompt(each.text, (1, *each.tokens)) for each in run.prompts]
    run.data.__dict__["prompts"] = marked
    run.data.__dict__["eval_prompts"] = marked
    batch = run.rollout(marked[:2]).own
    row, chosen = batch.tokens[0][batch.mask[0]], batch.action_mask[0][batch.mask[0]][1:]
    expected = logprobs(AutoModelForCausalLM.from_pretrained(teacher_folder()), row, 0.7)
    expected = expected - logprobs(make_llama(), row, 0.7)
    assert float(batch["scores"][0]) == pytest.approx(float(expected[chosen].sum()), abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "options"), [
    ("ppo", {"rollouts": 32, "batch_size": 32, "kl_coef": 0.0, "optimizer": {"lr": 1e-2}}),
    ("grpo", {"rollouts": 32, "num_generations": 8, "optimizer": {"lr": 1e-2}}),
])  # fmt: skip
def test_training_raises_the_log_ratio(tmp_path: Path, trainer: str, options: dict[str, Any]) -> None:
    rewards: list[float] = []

    class Watch:
        def on_step(self, run: Any, metrics: Any) -> None:
            rewards.append(metrics["reward/mean"])

    rlcore.train(
        make_llama(), tokenizer=make_tokenizer(), trainer={"name": trainer, **options}, prompts=list(PROMPTS),
        reward_fn={"name": "teacher", "path": teacher_folder()}, gen={"max_new_tokens": 4, "eos_token_ids": []},
        observers=[Watch()], run={"root": str(tmp_path), "steps": 25}, loggers=[],
    )  # fmt: skip
    assert sum(rewards[-5:]) > sum(rewards[:5]) + 5.0


def test_a_teacher_with_another_tokenizer_is_refused_by_name(tmp_path: Path) -> None:
    trainer = build(tmp_path, reward={"path": other_tokenizer(tmp_path / "other")})
    with pytest.raises((ConfigError, RewardError), match="the teacher has another tokenizer"):
        trainer.run.rollout(trainer.run.prompts[:2])


@pytest.mark.parametrize(("options", "message"), [
    ({"overlap_rewards": True}, r"run.overlap_rewards = true: reward 'teacher' computes log-probs of the policy"),
    ({"asynchronous": 1}, r"run.asynchronous = 1: reward 'teacher'"),
])  # fmt: skip
def test_runs_whose_policy_changes_meanwhile_are_refused(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _ = build(tmp_path, **options).run.data.reward_fn
    assert build(tmp_path / "other", reward={"subtract_policy": False}, **options).run.data.reward_fn is not None


def test_a_reward_without_a_teacher_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"teacher.path is empty: name the folder or hub id"):
        TeacherReward(TeacherRewardConfig())
