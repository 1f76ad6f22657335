"""Tests of `rlcore convert` for TRL's GRPOConfig: values worked by hand from the meanings of both libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted_options import flat, options_of

from rlcore.cli import main
from rlcore.config import load_yaml, structure
from rlcore_grpo.config import GRPOConfig
from rlcore_grpo.constraints import check as check_options
from rlcore_tools.conversion.trl_arguments import convert_trl

GRPO = {
    "model_name_or_path": "gpt2", "num_generations": 4, "per_device_train_batch_size": 8, "steps_per_generation": 4,
    "gradient_accumulation_steps": 2, "num_iterations": 2, "max_steps": 400, "beta": 0.04, "loss_type": "dr_grpo",
    "epsilon_high": 0.28, "use_vllm": True, "dataset_name": "openai/gsm8k", "dataset_config": "main",
}  # fmt: skip


def test_arguments_of_grpo_are_rounds_of_whole_groups(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "grpo.json").write_text(json.dumps(GRPO), encoding="utf-8")
    assert main(["convert", str(tmp_path / "grpo.json"), "--out", str(tmp_path / "run.yaml")]) == 0
    found = flat(load_yaml(tmp_path / "run.yaml"))
    wanted = {
        "trainer.name": "grpo", "trainer.rollouts": 32, "trainer.minibatches": 2, "trainer.micro_batch_size": 8,
        "trainer.iterations": 2, "trainer.kl_coef": 0.04, "trainer.norm": "constant", "trainer.clip_high": 0.28,
        "trainer.optimizer.lr": 1e-6, "trainer.optimizer.betas": [0.9, 0.999], "gen.max_new_tokens": 512,
        "data.prompts": "openai/gsm8k:main:train",
        "run.steps": 100,  # 400 optimizer steps in rounds of 2 iterations * 2 minibatches
    }  # fmt: skip
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    said = capsys.readouterr().err
    assert "not converted: use_vllm = True" in said
    assert "TRL's defaults are written for adam_beta1, adam_beta2, adam_epsilon, learning_rate" in said


LOSSES_OF_GRPO: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"loss_type": "luspo", "importance_sampling_level": "sequence"}, {"norm": "sum", "level": "sequence"}),
    ({"loss_type": "vespo", "vespo_k_neg": 2.5}, {"norm": "token", "surrogate": "vespo", "vespo_k_negative": 2.5}),
    ({"loss_type": "sapo", "sapo_temperature_pos": 2.0}, {"norm": "sequence", "surrogate": "sapo", "sapo_tau": 2.0}),
    ({"loss_type": "cispo", "epsilon_high": 5.0}, {"norm": "token", "surrogate": "cispo", "cispo_cap": 5.0}),
    ({"loss_type": "cispo"}, {"cispo_cap": 0.2}),  # TRL bounds the ratio itself by epsilon
    ({"beta": 0.1}, {"kl_coef": 0.1, "kl_ratio": True}),  # TRL's default
    ({"beta": 0.1, "use_bias_correction_kl": False}, {"kl_ratio": False}),
    ({"sync_ref_model": True, "beta": 0.1}, {"sync_ref_every": 512, "sync_ref_alpha": 0.6}),
    ({"multi_objective_aggregation": "normalize_then_sum"}, {"combine": "normalize_then_sum"}),
    ({"use_vllm": True}, {"is_correction": "sequence_mask", "is_high": 3.0}),
    ({"use_vllm": True, "vllm_importance_sampling_correction": False}, {"is_correction": "absent"}),
]


@pytest.mark.parametrize(("arguments", "wanted"), LOSSES_OF_GRPO, ids=str)
def test_the_losses_of_grpo_are_those_of_trl(arguments: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = convert_trl(arguments, "grpo", options_of("grpo")).values["trainer"]
    assert {name: found.get(name, "absent") for name in wanted} == wanted
    check({**found, "name": "grpo"})


@pytest.mark.parametrize(
    ("arguments", "norm"), [({}, None), ({"loss_type": "grpo"}, "sequence"), ({"loss_type": "dr_grpo"}, "constant")]
)
def test_the_bonus_for_entropy_is_noted_where_it_is_no_mean_over_tokens(
    arguments: dict[str, Any], norm: str | None
) -> None:
    conversion = convert_trl({**arguments, "entropy_coef": 0.01}, "grpo", options_of("grpo"))
    assert conversion.values["trainer"]["entropy_coef"] == 0.01
    notes = [line for line in conversion.notes if line.startswith("trainer.entropy_coef")]
    said = f"trainer.entropy_coef: the bonus is part of the mean of trainer.norm, {norm}; TRL's is a mean over tokens"
    assert notes == ([] if norm is None else [said])
    assert not convert_trl(arguments, "grpo", options_of("grpo")).left


def test_the_number_of_answers_in_evaluations_is_converted() -> None:
    conversion = convert_trl({"num_generations_eval": 4}, "grpo", options_of("grpo"))
    assert conversion.values["eval"]["samples"] == 4
    assert not conversion.left


def check(trainer: dict[str, Any]) -> None:
    """Check that the trainer's options go together."""
    options = {name: value for name, value in trainer.items() if name != "name"}
    check_options(structure(GRPOConfig, options, where="test"), world=1)
