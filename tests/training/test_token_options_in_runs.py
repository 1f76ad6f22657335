"""Tests of the sampler's options on tokens in whole runs: what trainers learn from, checks before them, resuming."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from held_laws import hold

import rlcore
from rlcore.config import load_yaml
from rlcore.errors import ConfigError
from rlcore_testing.small import make_gpt2, make_tokenizer

Make = Callable[..., Any]
GEN = {"max_new_tokens": 6}
SAMPLER: dict[str, Any] = {
    "name": "default", "min_p": 0.05, "repetition_penalty": 1.3, "logit_bias": [["a", 1.5], [4, -2.0]],
    "forbidden_tokens": ["z", 26],
}  # fmt: skip
PROMPTS = ["ab", "hello", "q", "see you."]
ONLINE = {
    "ppo": {"rollouts": 8, "batch_size": 4},
    "rlcore-grpo:grpo": {"rollouts": 8, "num_generations": 2, "minibatches": 2},
    "rlcore-reinforce:reinforce": {"rollouts": 8},
}


def letters(outputs: list[str]) -> list[float]:
    return [output.count("a") - 0.1 * len(output) for output in outputs]


def make(make_trainer: Make, name: str, sampler: Any = SAMPLER, **options: Any) -> Any:
    return make_trainer(
        name, make_gpt2(), sections={"gen": GEN, "sampler": sampler},
        inputs={"prompts": PROMPTS, "reward_fn": letters}, **{**ONLINE[name], **options},
    )  # fmt: skip


@pytest.mark.parametrize("name", ONLINE)
def test_trainers_warn_of_the_bias_and_learn_with_log_probs_of_the_policy(
    make_trainer: Make, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(make_trainer, name)
    run = trainer.run if hasattr(trainer, "run") else trainer._run
    assert "responses are not sampled from the policy that learns" in (seen := capsys.readouterr().err)
    assert "because=sampler" in seen
    assert not run.sampling.is_exact
    rounds: list[Any] = []
    run.observers.on_rollout = lambda _, batch: rounds.append(batch)
    next(trainer.steps())
    batch = rounds[0]
    tokens = set(batch.tokens[batch.action_mask].tolist())
    assert not tokens & {25, 26}
    plain = make(make_trainer, name, "default")
    assert (plain.run if hasattr(plain, "run") else plain._run).sampling.is_exact
    assert "because=" not in capsys.readouterr().err


def test_old_log_probs_are_those_of_the_whole_vocabulary(make_trainer: Make) -> None:
    run = make(make_trainer, "ppo").run
    batch = run.sampling.sample(run.prompts * 4)
    with torch.no_grad():
        scored = run.models.policy.score(batch).logprobs
    torch.testing.assert_close(batch["logprobs"][batch.action_mask], scored[batch.action_mask], atol=1e-5, rtol=0)
    assert float((batch["sampling_logprobs"] - scored)[batch.action_mask].max()) > 0.05


def test_grpo_refuses_weights_of_a_distribution_that_is_not_the_policys(make_trainer: Make) -> None:
    with pytest.raises(ConfigError, match=r"is_correction = 'token_truncate': with .* such as min_p"):
        make(make_trainer, "rlcore-grpo:grpo", is_correction="token_truncate")


@pytest.mark.parametrize(("sampler", "message"), [
    ({"forbidden_tokens": ["ab"]}, r"sampler\.forbidden_tokens: the text 'ab' is 2 tokens"),
    ({"logit_bias": {50_000: 1.0}}, r"sampler\.logit_bias: 50000 is no id of the model's vocabulary of 32 tokens"),
])  # fmt: skip
def test_tokens_are_checked_before_the_first_step(make_trainer: Make, sampler: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_trainer(
            "sft", make_gpt2(), sections={"sampler": {"name": "default", **sampler}},
            inputs={"samples": ["ab", "cd"], "eval_prompts": ["a"]},
        )  # fmt: skip


def test_a_run_that_excludes_eos_warns_once(make_trainer: Make, capsys: pytest.CaptureFixture[str]) -> None:
    make(make_trainer, "ppo", {"name": "default", "allowed_tokens": ["a", "b"]})
    assert capsys.readouterr().err.count("exclude EOS: responses end only at stop sequences") == 1
    make(make_trainer, "ppo", {"name": "default", "allowed_tokens": ["a", 30]})
    assert "exclude EOS" not in capsys.readouterr().err


def run_ppo(root: Path, name: str, **changes: Any) -> Any:
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), prompts=PROMPTS, eval_prompts=PROMPTS, reward_fn=letters,
        trainer={"name": "ppo", **ONLINE["ppo"]}, gen=GEN, sampler=changes.pop("sampler", SAMPLER),
        checkpoint={"every": 1}, loggers=[], run={"root": str(root), "name": name, **changes},
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_resumes_exactly_with_its_tokens_and_not_with_others(tmp_path: Path) -> None:
    run_ppo(tmp_path, "whole", steps=2)
    run_ppo(tmp_path, "parts", steps=1)
    other = {**SAMPLER, "logit_bias": {"a": 1.5, 4: -1.0}}
    with pytest.raises(ConfigError, match=r"sampler\.logit_bias was .*-2\.0\]\], is .*-1\.0\]\]"):
        run_ppo(tmp_path, "parts", steps=2, resume="auto", sampler=other)
    as_mapping = {**SAMPLER, "logit_bias": {"a": 1.5, 4: -2.0}}
    run_ppo(tmp_path, "parts", steps=2, resume="auto", sampler=as_mapping)
    written = [(tmp_path / name / "completions.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    rows, again = ([row for row in map(json.loads, lines) if row["step"] == 2] for lines in written)
    assert rows == again
    outputs = [row["output"] for row in rows]
    assert outputs
    assert not any("z" in each or " " in each for each in outputs), "evaluations use the options too"
    assert load_yaml(tmp_path / "whole/config.yaml")["sampler"]["logit_bias"] == [["a", 1.5], [4, -2.0]]


@pytest.mark.slow
@pytest.mark.parametrize("law", ["two_processes_equal_one", "resume_is_exact"])
def test_the_laws_of_trainers_hold_with_these_options(law: str) -> None:
    options = {"grpo": {"rollouts": 8, "num_generations": 2, "optimizer": {"lr": 1e-2}}}
    hold("rlcore-grpo", law, options=options, config={"sampler": SAMPLER})
