"""Tests of runs that train an adapter: PPO, SFT and ILQL unchanged; exact resume for any model; two processes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from e2e_processes import assert_same_run, lines, newest_checkpoint
from e2e_scenarios import COMMON, PPO, SFT, model_config, save_model, train
from safetensors.torch import load_file
from test_ranks import assert_near
from transformers import AutoModelForCausalLM

import rlcore
from rlcore.config import merge
from rlcore.errors import ModelError
from rlcore_testing.small import make_gpt2, make_llama, make_t5, make_tokenizer
from rlcore_transformers.models.peft.adapters import Adapters

LORA = {"type": "lora", "r": 4, "lora_alpha": 16, "target_modules": ["c_attn"], "lora_dropout": 0.1}
LLAMA = LORA | {"target_modules": ["q_proj", "down_proj"]}
RANDOM = LLAMA | {"init_lora_weights": False}
ILQL = {
    "samples": [["a", "bc"], ["d", "efgh"], ["b", "a"], ["c", "ccc"], ["e", "ab"]],
    "rewards": [1.0, -1.0, 0.5, 0.0, 2.0],
    "eval_prompts": ["a", "bc"],
    "trainer": {"name": "ilql", "batch_size": 4, "sync_every": 2, "target_rate": 0.3, "optimizer": {"lr": 3e-3}},
}


def carrying(seed: int) -> peft.PeftModel:
    """Return a model with a trained adapter."""
    torch.manual_seed(seed)
    options = {name: value for name, value in RANDOM.items() if name != "type"}
    return peft.get_peft_model(make_llama(seed=seed), peft.LoraConfig(**options))


def fit(given: dict[str, Any], model: Any, root: Path, name: str, steps: int, **run: Any) -> Any:
    sections = {"run": {"root": str(root), "name": name, "steps": steps, **run}, "tokenizer": make_tokenizer()}
    return rlcore.train(model, **merge(given | COMMON, sections))


@pytest.mark.slow
@pytest.mark.parametrize(
    "given",
    [
        pytest.param(PPO, id="ppo"),
        pytest.param(SFT, id="sft", marks=pytest.mark.nightly),
        pytest.param(ILQL, id="ilql", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda base, seed: {"path": str(base), "peft": LORA}, id="folder", marks=pytest.mark.nightly),
        pytest.param(lambda base, seed: {"path": model_config(0.1), "peft": LORA}, id="config"),
        pytest.param(lambda base, seed: {"path": make_llama(seed=seed), "peft": LLAMA}, id="memory"),
        pytest.param(lambda base, seed: {"path": make_llama(seed=seed), "peft": RANDOM}, id="random"),
        pytest.param(lambda base, seed: {"path": carrying(seed)}, id="carried"),
    ],
)
def test_resume_is_no_interruption(given: dict[str, Any], make: Callable[..., Any], tmp_path: Path) -> None:
    base = save_model(tmp_path / "base", dropout=0.1)
    fit(given, make(base, 0), tmp_path, "whole", 4)
    fit(given, make(base, 0), tmp_path, "parts", 2)
    # If the model has no name, the frozen base weights are loaded from the run.
    fit(given, make(base, 9), tmp_path, "parts", 4, resume="auto")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_resume_in_the_same_program_is_no_interruption(tmp_path: Path) -> None:
    model = make_llama()
    fit(PPO, {"path": copy.deepcopy(model), "peft": LLAMA}, tmp_path, "whole", 4)
    fit(PPO, {"path": model, "peft": LLAMA}, tmp_path, "parts", 2)
    done = fit(PPO, {"path": model, "peft": LLAMA}, tmp_path, "parts", 4, resume="auto")  # it now has the adapter
    assert isinstance(done.policy.reference, Adapters)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_checkpoints_hold_the_adapter_and_the_end_a_whole_model(tmp_path: Path) -> None:
    base = save_model(tmp_path / "base")
    done = fit(PPO, {"path": str(base), "peft": LORA}, tmp_path, "run", 2)
    checkpoint = newest_checkpoint(tmp_path / "run") / "model"
    files = {path.name for path in checkpoint.glob("*.safetensors")}
    assert files == {"adapter_model.safetensors", "heads.safetensors"}
    assert not (tmp_path / "run/start").exists()  # the base has a name
    done.save_pretrained(tmp_path / "out")
    tokens = torch.tensor([[1, 2, 3]])
    said = done.policy.model(input_ids=tokens).logits
    for folder in (tmp_path / "run/model", tmp_path / "out"):
        plain = AutoModelForCausalLM.from_pretrained(folder)
        torch.testing.assert_close(plain(input_ids=tokens).logits, said, atol=1e-5, rtol=0)
        beside = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder / "adapter")
        torch.testing.assert_close(beside(input_ids=tokens).logits, said, atol=1e-5, rtol=0)
    again = fit(PPO, str(checkpoint), tmp_path, "again", 1)
    assert not isinstance(again.policy.reference, Adapters)


def test_a_checkpoint_of_a_run_from_random_weights_can_be_started_from(tmp_path: Path) -> None:
    done = fit(SFT, {"path": model_config(), "peft": LORA}, tmp_path, "run", 2)
    checkpoint = newest_checkpoint(tmp_path / "run") / "model"
    policy = fit(SFT, str(checkpoint), tmp_path, "again", 0).policy
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(policy.model(input_ids=tokens).logits, done.policy.model(input_ids=tokens).logits)


@pytest.mark.slow
def test_a_starting_model_that_cannot_be_restored_is_refused_before_training(tmp_path: Path) -> None:
    pissa = LLAMA | {"init_lora_weights": "pissa", "lora_dropout": 0.0}
    with pytest.raises(ModelError, match="could not restore because the model has no name"):
        fit(SFT, {"path": make_llama(), "peft": pissa}, tmp_path, "run", 2)
    assert not (tmp_path / "run").exists()
    make_llama().save_pretrained(tmp_path / "base")
    named = {"path": str(tmp_path / "base"), "peft": pissa}
    whole = fit(PPO, named, tmp_path, "whole", 4)
    fit(PPO, named, tmp_path, "parts", 2)
    fit(PPO, named, tmp_path, "parts", 4, resume="auto")
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    assert not isinstance(whole.policy.reference, Adapters)


@pytest.mark.slow
@pytest.mark.parametrize("make", [make_gpt2, make_t5])
def test_ppo_improves_a_reward_with_lora(make: Callable[[], Any], tmp_path: Path) -> None:
    targets = ["c_attn", "c_fc", "c_proj"] if make is make_gpt2 else ["q", "k", "v", "o", "wi", "wo"]
    model = make()
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    done = rlcore.train(
        {"path": model, "peft": {"type": "lora", "r": 8, "lora_alpha": 32, "target_modules": targets}},
        trainer={"name": "ppo", "rollouts": 32, "batch_size": 16, "kl_coef": 0.01, "optimizer": {"lr": 1e-2}},
        reward_fn=lambda outputs: [output.count("a") / 4 for output in outputs],
        prompts=["ab", "c", "def", "g"], tokenizer=make_tokenizer(), gen={"max_new_tokens": 4}, loggers=[],
        eval={"at_start": True, "samples": 8, "show": 0}, run={"name": "run", "root": str(tmp_path), "steps": 12},
    )  # fmt: skip
    rewards = [row["eval/reward/mean"] for row in lines(tmp_path / "run/metrics.jsonl") if "eval/reward/mean" in row]
    assert rewards[0] < 0.2
    assert rewards[-1] > 0.4
    now = {name.replace(".base_layer", ""): weight for name, weight in done.policy.model.state_dict().items()}
    assert all(torch.equal(now[name], weight) for name, weight in before.items())


@pytest.mark.slow
def test_two_processes_train_the_adapter_that_one_does(two_ranks: Callable, tmp_path: Path) -> None:
    changes = {"run": {"steps": 5}, "trainer": {"optimizer": {"lr": 1e-3, "eps": 1e-3}}}
    changes["model"] = {"peft": LLAMA | {"lora_dropout": 0.0}}
    train("sft_lora", tmp_path, "one", changes)
    done = two_ranks("sft_lora", "two", changes)
    assert (tmp_path / "two" / "model").is_dir(), done.stderr
    assert_near(tmp_path / "one" / "model", tmp_path / "two" / "model")
    one, two = (newest_checkpoint(tmp_path / name) / "model" for name in ("one", "two"))
    assert_near(one, two)
    saved = load_file(two / "adapter_model.safetensors")
    assert all(weight.any() for name, weight in saved.items() if "lora_B" in name)
