"""Tests of mandatory warnings and errors: lost precision, divergence, conflicting options, changes on resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import rlcore
from rlcore.components import Component
from rlcore.errors import ConfigError, Diverged, RewardError
from rlcore.plugins.choice import Choice, Wrapping
from rlcore.training.loop import fit
from rlcore.training.resume import Saver

Make = Callable[..., Any]
INPUTS = {"reward_fn": lambda outputs: [float(len(o)) for o in outputs], "prompts": ["ab", "cde", "f", "gh"]}


def ppo(model: Any, tokenizer: Any, root: Path, **changes: Any) -> rlcore.Result:
    given: dict[str, Any] = {
        "trainer": {"name": "ppo", "rollouts": 8, "batch_size": 4, "epochs": 1},
        "run": {"root": str(root), "steps": 2},
        "gen": {"max_new_tokens": 5},
    }
    for name, value in changes.items():
        given[name] = {**given.get(name, {}), **value} if isinstance(value, dict) else value
    return rlcore.train(model, tokenizer=tokenizer, loggers=[], **INPUTS, **given)


@pytest.mark.parametrize("gen", [{}, {"temperature": 0.7}])
def test_sampler_learner_and_reference_agree_in_mixed_precision(
    gen: dict[str, Any], make_trainer: Make, tiny_model: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = {
        "run": {"root": str(tmp_path), "steps": 1, "mixed_precision": "bf16"},
        "gen": {"max_new_tokens": 6, **gen},
    }
    trainer = make_trainer("ppo", tiny_model, sections=sections, inputs=INPUTS, rollouts=8, batch_size=8, kl_coef=0.1)
    metrics = trainer.rollout()
    assert abs(metrics["kl/mean"]) < 1e-4  # nothing has been learned yet
    trainer.update(trainer.store.take())
    assert "sampler and trainer disagree" not in capsys.readouterr().err


def test_training_bfloat16_weights_causes_a_warning(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    make_trainer("sft", tiny_gpt2.to(torch.bfloat16), inputs={"samples": ["ab"]})
    assert "lose small updates" in capsys.readouterr().err


def test_a_run_that_diverges_stops_without_saving_the_weights(
    tiny_gpt2: PreTrainedModel, char_tokenizer: Any, tmp_path: Path
) -> None:
    trainer = {"optimizer": {"lr": 1e30}}
    run = {"steps": 4, "name": "r"}
    with pytest.raises(Diverged, match="diverged"):
        ppo(tiny_gpt2, char_tokenizer, tmp_path, trainer=trainer, run=run, checkpoint={"every": 1})
    assert not (tmp_path / "r" / "model").exists()
    for saved in (tmp_path / "r" / "checkpoints").glob("*/model"):
        weights = rlcore.train(str(saved), samples=["ab"], loggers=[], run={"root": str(tmp_path), "steps": 0})
        assert all(p.isfinite().all() for p in weights.policy.module.parameters())


def test_a_run_can_be_resumed_only_with_its_own_options(tiny_gpt2: Any, char_tokenizer: Any, tmp_path: Path) -> None:
    ppo(tiny_gpt2, char_tokenizer, tmp_path, run={"name": "r"})
    changed = {"kl_coef": 0.5, "optimizer": {"lr": 1e-3}}
    with pytest.raises(ConfigError, match=r"trainer.kl_coef was 0.001, is 0.5; trainer.optimizer.lr was None"):
        ppo(tiny_gpt2, char_tokenizer, tmp_path, trainer=changed, run={"name": "r", "resume": "auto", "steps": 3})
    done = ppo(tiny_gpt2, char_tokenizer, tmp_path, run={"name": "r", "resume": "auto", "steps": 3})
    assert done.run.step == 3


def test_weights_that_one_run_froze_can_be_trained_by_the_next(
    tiny_gpt2: Any, char_tokenizer: Any, tmp_path: Path
) -> None:
    tiny_gpt2.transformer.wpe.weight.requires_grad_(False)  # explicitly requested by the user
    ppo({"path": tiny_gpt2, "unfrozen_layers": 1}, char_tokenizer, tmp_path)
    assert not tiny_gpt2.transformer.h[0].mlp.c_fc.weight.requires_grad
    ppo(tiny_gpt2, char_tokenizer, tmp_path)
    held = [name for name, p in tiny_gpt2.named_parameters() if not p.requires_grad]
    assert held == ["transformer.wpe.weight"]
    assert not tiny_gpt2.training


def test_a_trainer_whose_steps_end_ends_the_run(make_trainer: Make, tiny_gpt2: Any) -> None:
    real = make_trainer("sft", tiny_gpt2, inputs={"samples": ["ab", "cd"]})

    def steps() -> Iterator[dict[str, float]]:
        yield {"loss/total": 1.0}
        yield {"loss/total": 0.5}

    two = SimpleNamespace(steps=steps, policy=real.policy, state_dict=dict)
    metrics = fit(two, real.run, Saver(real.run, {}, {}))
    assert real.run.step == 2
    assert metrics["loss/total"] == 0.5
    assert (real.run.dir / "checkpoints" / "00000002").is_dir()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"trainer": {"kl_target": 1.0, "kl_coef": 0.2, "kl_horizon": 1}},
            "make the weight of the KL penalty negative",
        ),
        ({"trainer": {"score_min": 1.0, "score_max": -1.0}}, "must be below score_max"),
        ({"trainer": {"optimizer": {"lr": math.inf}}}, r"trainer.optimizer.lr = inf: must lie in \(0, inf\)"),
        ({"trainer": {"optimizer": {"betas": [1.5, 2]}}}, r"betas = \[1.5, 2\]: must lie in \[0, 1\)"),
        ({"gen": {"min_new_tokens": 9}}, "must not exceed max_new_tokens"),
        ({"gen": {"eos_token_ids": [999]}}, "999 is not in the vocabulary of"),
        ({"eval": {"gen": {"temperature": []}}}, "eval.gen.temperature is an empty list"),
        ({"run": {"mixed_precision": "fp16"}}, "not supported on a CPU; use bf16"),
        ({"sampler": {"temperature": 1}}, "must be a name, or a mapping with `name`"),
        ({"model": {"attention": "flash_attention_2"}}, "cannot be loaded|cannot be built"),
    ],
)
def test_meaningless_options_are_refused(
    changes: dict[str, Any], message: str, tiny_gpt2: PreTrainedModel, char_tokenizer: Any, tmp_path: Path
) -> None:
    model = {"path": tiny_gpt2.config, **changes.pop("model", {})}
    with pytest.raises(rlcore.RLCoreError, match=message):
        ppo(model, char_tokenizer, tmp_path, **changes)


def test_a_metric_may_not_take_the_name_of_another(tiny_gpt2: Any, char_tokenizer: Any, tmp_path: Path) -> None:
    def metric_fn(outputs: list[str]) -> dict[str, list[float]]:
        return {"reward": [9.0] * len(outputs)}

    with pytest.raises(RewardError, match="'reward', a name that is in use"):
        ppo(tiny_gpt2, char_tokenizer, tmp_path, metric_fn=metric_fn)


def test_keeping_the_best_checkpoint_without_evaluations_is_refused(
    tiny_gpt2: Any, char_tokenizer: Any, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="nothing is evaluated"):
        rlcore.train(
            tiny_gpt2, tokenizer=char_tokenizer, samples=["ab"], loggers=[], run={"root": str(tmp_path)},
            eval={"every": 1}, checkpoint={"keep_best": 1},
        )  # fmt: skip


def test_a_component_is_built_from_its_options() -> None:
    def make(target: Any, options: Any) -> Choice:
        return Choice(Component("samplers", "s", "d", "1", "", target, None), options, Wrapping())

    assert make(len, None).build() is len
    assert make(lambda options: options["size"], {"size": 3}).build() == 3
    assert make(lambda: "store", None).factory()() == "store"
    assert make(lambda options: options["size"], {"size": 4}).factory()() == 4
