"""Tests of `rlcore.train`: accepted inputs, stopping conditions, and the files of a run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from e2e_processes import assert_same, lines, run_process
from e2e_scenarios import SFT, WORDS, count_a, save_model, train
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlcore
from rlcore import errors
from rlcore.config import load_yaml
from rlcore.errors import InputsError
from rlcore.training.progress import Progress
from rlcore_testing.small import make_gpt2, make_tokenizer

GEN = {"max_new_tokens": 4}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(save_model(tmp_path / "base"))


def same_weights(one: Path, other: Path) -> None:
    assert_same(load_file(one / "model/model.safetensors"), load_file(other / "model/model.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["sft_config", "ppo_config"])
def test_evaluating_more_often_does_not_change_training(tmp_path: Path, scenario: str) -> None:
    for name, cadence in (("often", {"every": 1, "at_start": True, "samples": 2}), ("never", {"every": 0})):
        train(scenario, tmp_path, name, {"run": {"steps": 4}, "eval": cadence, "loggers": ["console"]})
    same_weights(tmp_path / "often", tmp_path / "never")


def test_an_option_swept_at_evaluation_is_named_in_the_metric(tmp_path: Path) -> None:
    changes = {"run": {"steps": 1}, "eval": {"at_end": True, "gen": {"temperature": [0.5, 1.0]}}}
    done = train("ppo_config", tmp_path, "run", changes)
    assert {"eval/reward/mean@temperature=0.5", "eval/reward/mean@temperature=1.0"} <= done.metrics.keys()
    assert {row["sampling"] for row in lines(tmp_path / "run/completions.jsonl")} == {
        "temperature=0.5", "temperature=1.0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("budget", "steps"),
    [({"steps": 3}, 3), ({"epochs": 1.0}, 5), ({"epochs": 0.5}, 3), ({"epochs": 2, "steps": 4}, 4), ({}, 5)],
)
def test_a_run_ends_when_its_step_budget_is_spent(tmp_path: Path, budget: dict, steps: int) -> None:
    # 23 samples in batches of 5: one pass, the default budget, takes five steps.
    assert train("sft_config", tmp_path, "run", {"run": budget, "eval": {"every": 0}}).run.step == steps


@pytest.mark.parametrize(("budget_s", "steps"), [(30.0, 3), (30.1, 4), (5.0, 1)])
def test_a_run_ends_with_the_first_step_after_which_its_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget_s: float, steps: int
) -> None:
    monkeypatch.setattr(Progress, "elapsed_s", property(lambda progress: 10.0 * progress.step))
    changes = {"run": {"time_s": budget_s}, "eval": {"every": 0}, "checkpoint": {"every": 0}}
    assert train("sft_config", tmp_path, "run", changes).run.step == steps


@pytest.mark.nightly
def test_the_recorded_configuration_of_a_run_trains_the_same(base: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": word}) + "\n" for word in WORDS))
    (tmp_path / "house_rewards.py").write_text(
        "def vowels(outputs):\n    return [o.count('a') + o.count('e') for o in outputs]\n"
    )
    (tmp_path / "ppo.yaml").write_text(
        "trainer: {name: ppo, rollouts: 6, batch_size: 3, epochs: 1, optimizer: {lr: 1e-3}}\n"
        "model: {path: base, tokenizer: base}\n"
        "data: {prompts: prompts.jsonl, eval_prompts: [a, 'yes', '12'], reward_fn: 'house_rewards:vowels'}\n"
        "gen: {max_new_tokens: 4}\nrun: {name: one}\n"
    )
    rlcore_train = [sys.executable, "-m", "rlcore", "train"]
    first = run_process([*rlcore_train, "ppo.yaml", "trainer.clip=0.1", "run.steps=2"], cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "\x1b" not in first.stdout
    assert "\r" not in first.stdout
    said = first.stdout.splitlines()
    assert sum(line.startswith("step ") for line in said) == 2
    assert any(line.startswith("finished: 2 steps") for line in said)
    (lengths,) = first.stderr.splitlines()
    assert "] prompts: 23 rows; tokens: 2 to 6, median 4, " in lengths
    written = load_yaml(tmp_path / "runs/one/config.yaml")
    assert written["trainer"]["clip"] == 0.1
    assert written["data"]["eval_prompts"] == ["a", "yes", "12"]
    again = run_process([*rlcore_train, "runs/one/config.yaml", "run.name=two"], cwd=tmp_path, RLCORE_LOG_LEVEL="debug")
    assert again.returncode == 0, again.stderr
    same_weights(tmp_path / "runs/one", tmp_path / "runs/two")
    assert lines(tmp_path / "runs/one/metrics.jsonl") == lines(tmp_path / "runs/two/metrics.jsonl")


def test_the_log_level_of_the_configuration_decides_what_is_logged(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 2}})
    again = {"run": {"steps": 4, "resume": "auto"}}
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "warning")
    capsys.readouterr()
    train("sft_config", tmp_path, "run", again)
    assert not capsys.readouterr().err
    monkeypatch.setenv("RLCORE_LOG_LEVEL", "info")
    train("sft_config", tmp_path, "run", {"run": {"steps": 6, "resume": "auto"}})
    assert "resumed" in capsys.readouterr().err


def test_recorded_inputs_from_python_are_described_and_cannot_be_reused(tmp_path: Path) -> None:
    many = [f"{letter}{other}" for letter in "abcdefghijkl" for other in "abcdefghijkl"]
    train(
        "sft_config",
        tmp_path,
        "run",
        {"run": {"steps": 1}, "eval_prompts": many, "samples": Dataset.from_list([{"text": "ab"}])},
    )
    written = load_yaml(tmp_path / "run/config.yaml")
    assert written["data"]["samples"] == "<Dataset of 1>"
    assert written["data"]["eval_prompts"] == "<list of 144>"
    assert written["data"]["eval_samples"] == SFT["eval_samples"]
    assert written["data"]["metric_fn"] == "e2e_scenarios:noisy_length"
    assert written["model"]["path"] == "<GPT2Config>"
    with pytest.raises(errors.InputsError, match=r"model.path = '<GPT2Config>'.*from Python"):
        rlcore.train(config=tmp_path / "run/config.yaml", run={"name": "again"})


def test_a_result_generates_and_saves(base: str, tmp_path: Path) -> None:
    done = rlcore.train(base, samples=[["a", "bc"], ["d", "ef"]], gen=GEN, loggers=[])
    assert done.run_dir.parent == Path("runs")
    assert done.run_dir.name.startswith("sft-")
    assert done.metrics["loss/total"] > 0
    assert len(done.generate(["a", "b"], temperature=0)) == 2
    assert len(done.generate("a", max_new_tokens=2)) == 1
    done.save_pretrained("out")
    assert len(AutoTokenizer.from_pretrained("out")) == 32
    for folder in ("out", str(done.run_dir / "model")):
        loaded = AutoModelForCausalLM.from_pretrained(folder)
        assert_same(dict(loaded.state_dict()), dict(done.policy.model.state_dict()))


def test_several_runs_in_one_process_do_not_affect_each_other(base: str) -> None:
    for precision in ("no", "bf16", "no"):
        done = rlcore.train(base, samples=["abc", "def"], loggers=[], run={"mixed_precision": precision, "steps": 1})
        assert done.run.ranks.accelerator.mixed_precision == precision


def test_a_model_in_memory_is_trained_in_place(tmp_path: Path) -> None:
    model = make_gpt2()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    arguments = {
        "tokenizer": make_tokenizer(),
        "reward_fn": count_a,
        "prompts": WORDS,
        "gen": GEN,
        "loggers": [],
    }
    trainer = {"rollouts": 4, "batch_size": 4, "kl_coef": 0.1, "optimizer": {"lr": 1e-2}}
    run = {"root": str(tmp_path), "name": "run", "steps": 1}
    rlcore.train(model, trainer=trainer, run=run, **arguments)
    changed = {name: weight.clone() for name, weight in model.state_dict().items()}
    assert not torch.equal(changed["lm_head.weight"], before["lm_head.weight"])
    done = rlcore.train(model, trainer=trainer, run=run | {"steps": 2, "resume": "auto"}, **arguments)
    # The KL penalty still refers to the initial model of the run, not to the model passed on resume.
    assert_same(done.policy.reference.state_dict()["lm_head.weight"], before["lm_head.weight"])
    assert not torch.equal(model.state_dict()["lm_head.weight"], changed["lm_head.weight"])


async def later(outputs: list[str]) -> list[float]:
    return [1.0] * len(outputs)


def test_the_trainer_is_chosen_by_the_inputs(base: str) -> None:
    ppo = {"name": None, "rollouts": 4, "batch_size": 4, "epochs": 1}
    prompts = Dataset.from_list([{"prompt": "a", "extra": 1}, {"prompt": "bc", "extra": 2}])
    rewards = {"now": lambda outputs, extra: [float(x) for x in extra], "later": (later, 0.5)}
    done = rlcore.train(
        base,
        trainer=ppo,
        reward_fn=rewards,
        prompts=prompts,
        eval_prompts=prompts,
        gen=GEN,
        loggers=[],
        run={"steps": 1},
    )
    assert done.run.config.trainer["name"] == "ppo"
    assert done.metrics["reward/mean"] == pytest.approx(1.5 + 0.5)
    assert done.metrics["reward/later"] == 1.0
    assert done.metrics["eval/reward/now"] == 1.5
    samples = Dataset.from_list([{"prompt": "a", "output": "bc"}, {"prompt": "d", "output": "ef"}])
    done = rlcore.train(base, samples=samples, eval_samples=samples, loggers=[], run={"steps": 1})
    assert done.run.config.trainer["name"] == "sft"
    assert done.metrics["eval/loss"] > 0


def test_conversations_are_rendered_by_the_chat_template(base: str) -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}!{% else %}?{% endif %}{% endfor %}"
    )
    talk = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    seen: list[str] = []

    def listen(prompts: list[str]) -> list[float]:
        seen.extend(prompts)
        return [0.0] * len(prompts)

    common = {"tokenizer": tokenizer, "gen": GEN, "loggers": [], "run": {"steps": 1}}
    rlcore.train(base, samples=[talk], **common)
    rlcore.train(base, prompts=[talk[:1]], reward_fn=listen, trainer={"rollouts": 2, "batch_size": 2}, **common)
    assert set(seen) == {"ab?"}


def test_a_config_object_names_its_trainer(base: str) -> None:
    from rlcore_sft.config import SFTConfig

    done = rlcore.train(base, trainer=SFTConfig(batch_size=1), samples=["abc", "def"], loggers=[])
    assert done.run.step == 2


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"samples": ["ab"], "rewards": [1.0]}, r"(?s)calls for trainer 'ilql'.* is installed, but disabled.*names it"),
        ({"prompts": ["ab"], "reward_fn": len}, r"(?s)calls for trainer 'ppo'.* is installed, but disabled.*names it"),
    ],
    ids=["ilql", "ppo"],
)
def test_inputs_that_imply_a_missing_trainer_are_an_error_with_the_reason(
    inputs: dict[str, Any], said: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLCORE_DISABLE_PLUGINS", "rlcore-ppo,rlcore-ilql")
    with pytest.raises(InputsError, match=said):
        rlcore.train(base, **inputs, loggers=[])
