"""Tests of `rlcore convert` for trlX: values worked by hand from both libraries; nothing is dropped silently."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted_options import flat, options_of

from rlcore.cli import main
from rlcore.config import load_yaml, structure
from rlcore.settings import TrainConfig
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trlx_config import convert_trlx

TRLX: dict[str, Any] = {
    "train": {
        "seq_length": 64, "epochs": 100, "total_steps": 1000, "batch_size": 32, "eval_interval": 128,
        "trainer": "AcceleratePPOTrainer", "pipeline": "PromptPipeline", "tracker": None, "checkpoint_dir": "out/walks",
    },
    "model": {"model_path": "gpt2", "num_layers_unfrozen": 2},
    "tokenizer": {"tokenizer_path": "gpt2", "truncation_side": "right"},
    "optimizer": {"name": "adamw", "kwargs": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 1e-6}},
    "scheduler": {"name": "cosine_annealing", "kwargs": {"T_max": 1e12, "eta_min": 3e-5}},
    "method": {
        "name": "PPOConfig", "num_rollouts": 128, "chunk_size": 64, "ppo_epochs": 4, "init_kl_coef": 0.2,
        "target": None, "gamma": 1, "cliprange_value": 0.2, "scale_reward": None, "cliprange_reward": 10,
        "gen_kwargs": {"max_new_tokens": 48, "top_k": 0.0, "do_sample": True},
    },
}  # fmt: skip


def with_scheduler(**kwargs: float) -> Conversion:
    return convert_trlx({**TRLX, "scheduler": {"name": "cosine_annealing", "kwargs": kwargs}}, "ppo", options_of("ppo"))


def test_a_configuration_of_trlx_becomes_a_file_that_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "trlx.yml").write_text(json.dumps(TRLX), encoding="utf-8")
    assert main(["convert", str(tmp_path / "trlx.yml"), "--out", str(tmp_path / "run.yaml")]) == 0
    values = load_yaml(tmp_path / "run.yaml")
    structure(TrainConfig, values)
    found = flat(values)
    wanted = {
        "trainer.name": "ppo", "trainer.rollouts": 128, "trainer.batch_size": 32, "trainer.epochs": 4,
        "trainer.kl_coef": 0.2, "trainer.clip_value": 0.2, "trainer.score_min": -10.0, "trainer.score_scaling": "none",
        "trainer.target_kl": None, "trainer.optimizer.lr": 1e-4, "trainer.optimizer.scheduler": "constant",
        "trainer.optimizer.max_grad_norm": 0.0, "model.path": "gpt2", "model.unfrozen_layers": 2,
        "data.max_prompt_tokens": 16, "data.truncation_side": "right", "gen.max_new_tokens": 48, "gen.top_k": 0,
        "gen.batch_size": 64, "run.root": "out", "run.name": "walks",
        "run.steps": 63,  # 1000 optimizer steps in rounds of 4 * 128 / 32
        "eval.every": 8,
    }  # fmt: skip
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    said = capsys.readouterr().err
    assert "not converted" not in said
    assert "steps are rounds of 16 optimizer steps" in said
    assert "check: run.steps: 63, from train.total_steps; train.epochs allows 100" in said


def test_converting_a_cosine_schedule_that_epochs_cut_short_reports_it() -> None:
    shorter = {**TRLX, "train": {**TRLX["train"], "epochs": 10}}
    shorter["scheduler"] = {"name": "cosine_annealing", "kwargs": {"T_max": 1000, "eta_min": 0}}
    conversion = convert_trlx(shorter, "ppo", options_of("ppo"))
    assert conversion.values["run"]["steps"] == 10
    assert any(line == "run.steps: 10, from train.epochs; train.total_steps allows 63" for line in conversion.notes)
    assert [line for line in conversion.left if line.startswith("scheduler.kwargs.T_max = 1000.0")]


@pytest.mark.parametrize(
    ("gen_kwargs", "wanted"),
    [
        (None, {"beta": 1.0, "top_k": 20, "max_new_tokens": 32}),
        ({"max_new_tokens": 9}, {"beta": 1.0, "top_k": 20, "max_new_tokens": 9}),
        ({"beta": 4, "top_k": 0, "max_new_tokens": 9}, {"beta": 4, "top_k": 0, "max_new_tokens": 9}),
        ({"beta": [0, 100], "top_k": 5, "max_new_tokens": 9}, {"beta": 1.0, "top_k": 5, "max_new_tokens": 9}),
    ],
)
def test_ilql_samples_with_the_defaults_of_trlx(gen_kwargs: Any, wanted: dict[str, Any]) -> None:
    """`generate` of trlX's AutoModelForCausalLMWithILQLHeads: beta=1, top_k=20, max_new_tokens=32."""
    method = {"tau": 0.7, **({} if gen_kwargs is None else {"gen_kwargs": gen_kwargs})}
    conversion = convert_trlx({"method": method}, "ilql", options_of("ilql"))
    structure(TrainConfig, conversion.values)
    assert conversion.values["gen"] == wanted
    swept = {name: value for name, value in (gen_kwargs or {}).items() if isinstance(value, list)}
    assert conversion.values.get("eval", {}).get("gen", {}) == swept
    written = [name for name in wanted if name not in (gen_kwargs or {}) or name in swept]
    notes = [line for line in conversion.notes if line.startswith("trlX's defaults of sampling are written")]
    assert notes == ([f"trlX's defaults of sampling are written for {', '.join(written)}"] if written else [])


TRLX_FIELDS = {
    "train": "total_steps seq_length epochs batch_size checkpoint_interval eval_interval pipeline trainer_kwargs "
    "project_name entity_name group_name checkpoint_dir rollout_logging_dir save_best save_optimizer "
    "resume_from_checkpoint tracker logging_dir tags seed minibatch_size",
    "model": "model_path model_arch_type num_layers_unfrozen peft_config model_extra_configs",
    "tokenizer": "tokenizer_path padding_side truncation_side tokenizer_extra_configs",
    "optimizer": "name kwargs",
    "scheduler": "name kwargs",
}
"""Fields of trlX's dataclasses, without those that name the trainer."""
METHOD_FIELDS = {
    "ppo": "ppo_epochs num_rollouts chunk_size init_kl_coef target horizon gamma lam cliprange cliprange_value vf_coef "
    "scale_reward ref_mean ref_std cliprange_reward gen_kwargs gen_experience_kwargs num_value_layers_unfrozen",
    "ilql": "tau gamma cql_scale awac_scale alpha beta steps_for_target_q_sync two_qs gen_kwargs",
    "sft": "gen_kwargs",
    "rft": "gen_kwargs start_percentile end_percentile n_improve_steps n_generations_per_prompt",
}
VALUES = {"peft_config": {"peft_type": "LORA", "r": 3}, "kwargs": {"lr": 7e-5}, "gen_kwargs": {"top_k": 7}}
VALUES |= {"gen_experience_kwargs": {"top_k": 7}, "rollout_logging_dir": "logs"}


@pytest.mark.parametrize("trainer", sorted(METHOD_FIELDS))
def test_no_field_of_trlx_is_dropped_silently(trainer: str) -> None:
    options, basis = options_of(trainer), {"train": {"batch_size": 5}, "optimizer": {"kwargs": {"lr": 6e-5}}}
    before = convert_trlx(basis, trainer, options)
    dropped = []
    for section, names in {**TRLX_FIELDS, "method": METHOD_FIELDS[trainer]}.items():
        for name in names.split():
            value: Any = VALUES.get(name, 70)
            given = {**basis, section: {**basis.get(section, {}), name: value}}
            after = convert_trlx(given, trainer, options)
            if after.values == before.values and len(after.left) == len(before.left):
                dropped.append(f"{section}.{name}")
    assert not dropped


def test_converting_a_cosine_schedule_that_does_not_end_with_the_run_reports_it() -> None:
    ending = with_scheduler(T_max=1000, eta_min=1e-5)
    assert ending.values["trainer"]["optimizer"]["scheduler"] == "cosine_with_min_lr"
    assert ending.values["trainer"]["optimizer"]["scheduler_options"] == {"min_lr": 1e-5}
    assert with_scheduler(T_max=1000, eta_min=0).values["trainer"]["optimizer"]["scheduler"] == "cosine"
    [line] = with_scheduler(T_max=500, eta_min=1e-5).left
    assert line.startswith("scheduler.kwargs.T_max = 500.0: schedules end with the run")
