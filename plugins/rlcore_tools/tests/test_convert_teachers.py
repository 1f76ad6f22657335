"""`rlcore convert` of the arguments of TRL's GKDConfig, DistillationConfig and OnlineDPOConfig."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.cli import main
from rlcore.config import dump_yaml, load_yaml, structure
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_tools.conversion.trl_arguments import convert_trl, trainer_of

GKD = {
    "model_name_or_path": "gpt2", "teacher_model_name_or_path": "gpt2-large", "lmbda": 0.3, "beta": 0.7,
    "max_new_tokens": 16, "dataset_name": "org/rows", "max_steps": 10, "gradient_accumulation_steps": 2,
    "disable_dropout": True, "seq_kd": False,
}  # fmt: skip
DISTILLATION = {
    "model_name_or_path": "gpt2", "teacher_model_name_or_path": "gpt2-large", "max_completion_length": 256,
    "beta": 1.0, "learning_rate": 1e-6, "dataset_name": "org/prompts", "max_steps": 10,
    "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "remove_unused_columns": False,
}  # fmt: skip
ONLINE = {
    "model_name_or_path": "gpt2", "reward_model_path": "org/judge", "beta": [0.2], "max_length": 300,
    "max_new_tokens": 44, "loss_type": "ipo", "dataset_name": "org/prompts", "max_steps": 10, "top_p": 0.9,
    "per_device_train_batch_size": 4, "disable_dropout": True,
}  # fmt: skip


def converted(folder: Path, arguments: dict[str, Any], *flags: str) -> tuple[dict[str, Any], str]:
    (folder / "trl.yaml").write_text(dump_yaml(arguments), encoding="utf-8")
    assert main(["convert", str(folder / "trl.yaml"), "--out", str(folder / "run.yaml"), *flags]) == 0
    values = load_yaml(folder / "run.yaml")
    structure(TrainConfig, values)
    return values, (folder / "run.yaml").read_text(encoding="utf-8")


def test_the_arguments_of_gkd_become_those_of_distill(tmp_path: Path) -> None:
    values, text = converted(tmp_path, GKD)
    optimizer = values["trainer"].pop("optimizer")
    assert optimizer["lr"] == 2e-5  # TRL's default
    assert values["trainer"] == {
        "name": "distill", "teacher": "gpt2-large", "on_policy": 0.3, "divergence": "jsd", "beta": 0.7,
        "temperature": 1.0, "batch_size": 16, "micro_batch_size": 8,
    }  # fmt: skip
    assert values["gen"] == {"max_new_tokens": 16, "temperature": 0.9}
    assert values["data"] == {"samples": "org/rows", "max_sample_tokens": 1024}
    assert values["run"]["steps"] == 10
    assert "Not converted" not in text
    assert "Check: trainer.temperature: is 1, that of TRL's divergence" in text


@pytest.mark.parametrize(("beta", "expected"), [
    (0.0, {"divergence": "forward_kl"}), (1.0, {"divergence": "reverse_kl"}), (0.5, {"divergence": "jsd", "beta": 0.5}),
])  # fmt: skip
def test_the_ends_of_beta_are_the_two_divergences(tmp_path: Path, beta: float, expected: dict[str, Any]) -> None:
    trainer = converted(tmp_path, {**GKD, "beta": beta})[0]["trainer"]
    assert {name: trainer[name] for name in ("divergence", "beta") if name in trainer} == expected


def test_outputs_of_the_teacher_are_of_the_trainer_that_takes_prompts(tmp_path: Path) -> None:
    text = converted(tmp_path, {**GKD, "seq_kd": True})[1]
    assert (
        "Not converted: seq_kd = True: name --trainer distill_prompts, whose other outputs the teacher samples" in text
    )
    values, text = converted(tmp_path, {**GKD, "seq_kd": True}, "--trainer", "distill_prompts")
    assert values["trainer"]["name"] == "distill_prompts"
    assert values["trainer"]["on_policy"] == 0.3
    assert values["trainer"]["teacher_temperature"] == 0.9
    assert values["data"]["prompts"] == "org/rows"
    assert "Not converted" not in text


@pytest.mark.parametrize("flags", [
    [], ["--trainer", "distillation"], ["--trainer", "DistillationTrainer"], ["--trainer", "distill_prompts"],
])  # fmt: skip
def test_the_arguments_of_distillation_become_those_of_outputs_of_the_policy_alone(
    tmp_path: Path, flags: list[str]
) -> None:
    values, text = converted(tmp_path, DISTILLATION, *flags)
    optimizer = values["trainer"].pop("optimizer")
    assert optimizer["lr"] == 1e-6
    assert values["trainer"] == {
        "name": "distill_prompts", "teacher": "gpt2-large", "on_policy": 1.0, "divergence": "reverse_kl",
        "batch_size": 8, "micro_batch_size": 4,
    }  # fmt: skip
    assert values["gen"] == {"max_new_tokens": 256, "temperature": 1.0}  # the divergence has the temperature of gen
    assert values["data"] == {"prompts": "org/prompts"}
    assert values["run"]["steps"] == 10
    assert "Not converted" not in text
    assert "Check: dropout: there is none here; TRL's default keeps that of the model" in text


def test_a_temperature_of_distillation_is_that_of_sampling_and_of_the_divergence(tmp_path: Path) -> None:
    values, text = converted(tmp_path, {**DISTILLATION, "temperature": 0.7, "beta": 0.3, "disable_dropout": True})
    assert values["gen"]["temperature"] == 0.7
    assert "temperature" not in values["trainer"]
    assert (values["trainer"]["divergence"], values["trainer"]["beta"]) == ("jsd", 0.3)
    assert "dropout" not in text


def test_the_arguments_of_online_dpo_become_options(tmp_path: Path) -> None:
    values, text = converted(tmp_path, ONLINE)
    optimizer = values["trainer"].pop("optimizer")
    assert optimizer["lr"] == 5e-7  # TRL's default
    assert values["trainer"] == {"name": "online_dpo", "beta": 0.2, "loss": "ipo", "batch_size": 4}
    assert values["gen"] == {"max_new_tokens": 44, "temperature": 0.9, "top_p": 0.9}
    assert values["data"] == {
        "prompts": "org/prompts", "max_prompt_tokens": 256, "reward_fn": {"fn": "reward_model", "path": "org/judge"},
    }  # fmt: skip
    assert "Not converted" not in text


@pytest.mark.parametrize(("arguments", "reason"), [
    ({**ONLINE, "missing_eos_penalty": 1.0}, "missing_eos_penalty = 1.0: there is none; a reward"),
    ({**ONLINE, "beta": [0.2, 0.1]}, r"beta = [0.2, 0.1]: there is one for all epochs"),
    ({**ONLINE, "disable_dropout": False}, "disable_dropout = False: trainer 'online_dpo' never uses dropout"),
    ({**ONLINE, "use_vllm": True}, "use_vllm = True: "),
    ({**GKD, "disable_dropout": False}, "disable_dropout = False: trainer 'distill' never uses dropout"),
    ({**GKD, "packing": True}, "packing = True: batches run without padding"),
    ({**GKD, "teacher_model_init_kwargs": {"dtype": "bfloat16"}}, "the teacher has the dtype of the model"),
    ({**GKD, "teacher_model_revision": "v2"}, "teacher_model_revision = v2: download that revision (`hf download"),
])  # fmt: skip
def test_what_has_no_counterpart_is_named_with_the_reason(
    tmp_path: Path, arguments: dict[str, Any], reason: str
) -> None:
    left = [line for line in converted(tmp_path, arguments)[1].splitlines() if line.startswith("# Not converted: ")]
    assert [reason in line for line in left] == [True]


def test_the_trainer_follows_from_arguments_that_only_one_has() -> None:
    assert trainer_of({"lmbda": 0.5}) == "gkd"
    assert trainer_of({"reward_model_path": "x"}) == "online_dpo"


@pytest.mark.parametrize(("more", "trainer"), [
    ({}, "distillation"), ({"max_completion_length": 256}, "distillation"), ({"beta": 1.0}, "distillation"),
    ({"max_new_tokens": 64}, "gkd"), ({"max_length": 512}, "gkd"), ({"packing": False}, "gkd"), ({"lmbda": 1.0}, "gkd"),
])  # fmt: skip
def test_a_teacher_is_of_distillation_unless_an_argument_is_of_gkd_alone(more: dict[str, Any], trainer: str) -> None:
    assert trainer_of({"teacher_model_name_or_path": "gpt2-large", **more}) == trainer


@pytest.mark.parametrize(("method", "trainer", "defaults"), [
    ("gkd", "distill", {"lmbda": 0.5, "beta": 0.5, "temperature": 0.9, "max_new_tokens": 128, "max_length": 1024}),
    ("distillation", "distill_prompts", {"beta": 1.0, "temperature": 1.0, "max_completion_length": 512}),
    ("online_dpo", "online_dpo", {"beta": 0.1, "temperature": 0.9, "max_new_tokens": 64, "max_length": 512}),
])  # fmt: skip
def test_defaults_of_trl_are_written(method: str, trainer: str, defaults: dict[str, Any]) -> None:
    options = all_registries().trainers.get(trainer).config_class()
    assert options is not None
    without = convert_trl({"model_name_or_path": "gpt2"}, trainer, options, method=method)
    given = convert_trl({"model_name_or_path": "gpt2", **defaults}, trainer, options, method=method)
    assert without.values == given.values
