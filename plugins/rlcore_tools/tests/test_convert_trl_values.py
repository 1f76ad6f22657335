"""Tests of `rlcore convert` for values of TRL's files: numbers as texts, generations and steps, defaults of TRL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from converted_options import options_of

from rlcore.cli import main
from rlcore.config import load_yaml
from rlcore_tools.conversion.trl_arguments import convert_trl, trainer_of

GENERATIONS: list[tuple[tuple[int, int, int, int], tuple[int, int, int, int]]] = [
    # size, gradient_accumulation_steps, steps_per_generation, num_iterations
    # → rollouts, minibatches, iterations, optimizer steps of a round
    ((2, 4, 4, 1), (8, 1, 1, 1)),
    ((2, 4, 8, 3), (16, 2, 3, 6)),
    ((2, 8, 2, 1), (16, 1, 1, 1)),  # a step learns from four samplings of 4, all of one policy
    ((2, 8, 2, 2), (8, 1, 1, 1)),  # from two, each twice
    ((2, 8, 2, 4), (4, 1, 1, 1)),  # from one, four times
    ((2, 8, 2, 8), (4, 1, 2, 2)),  # two steps learn from the same one, each four times
]


@pytest.mark.parametrize(("given", "wanted"), GENERATIONS, ids=str)
def test_a_round_has_the_sequences_and_steps_of_trl(given: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    """TRL samples every steps_per_generation * num_iterations micro-batches, and steps after accumulation of them."""
    size, parts, pieces, passes = given
    arguments = {
        "per_device_train_batch_size": size, "gradient_accumulation_steps": parts, "steps_per_generation": pieces,
        "num_iterations": passes, "max_steps": 60, "num_generations": 2,
    }  # fmt: skip
    conversion = convert_trl(arguments, "grpo", options_of("grpo"))
    trainer = conversion.values["trainer"]
    assert not conversion.left
    assert (trainer["rollouts"], trainer["minibatches"], trainer.get("iterations", 1)) == wanted[:3]
    assert conversion.values["run"]["steps"] == 60 // wanted[3]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"steps_per_generation": 3, "gradient_accumulation_steps": 2}, "steps_per_generation = 3: steps of 2 micro-"),
        ({"steps_per_generation": 2, "gradient_accumulation_steps": 3}, "steps_per_generation = 2: steps of 3 micro-"),
        ({"generation_batch_size": 12}, "generation_batch_size = 12: it is no multiple of per_device_train_batch_size"),
    ],
    ids=str,
)
def test_generations_that_steps_do_not_divide_are_named(arguments: dict[str, Any], line: str) -> None:
    [left] = convert_trl(arguments, "grpo", options_of("grpo")).left
    assert left.startswith(line)


def test_numbers_and_switches_may_be_texts_as_for_the_parser_of_trl() -> None:
    numbers = {
        "learning_rate": 5e-7, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "max_steps": 10,
        "warmup_steps": 0.1, "weight_decay": 0.01, "logging_steps": 5, "packing": False, "use_peft": False,
        "max_length": 64, "model_name_or_path": "7", "output_dir": "runs/3", "dataset_name": "1",
    }  # fmt: skip
    texts = {name: str(value) for name, value in numbers.items()}
    found, wanted = (convert_trl(each, "sft", options_of("sft")) for each in (texts, numbers))
    assert (found.values, found.left) == (wanted.values, wanted.left)
    assert not found.left
    assert (found.values["model"], found.values["run"]["name"]) == ({"path": "7"}, "3")


def test_a_value_that_is_no_number_is_named(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.yaml").write_text("packing: true\nmax_steps: two\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "any.yaml")]) == 1
    assert "max_steps = 'two': must be a number, as in max_steps: -1" in capsys.readouterr().err


def test_a_script_is_refused_with_what_writes_its_arguments(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "train.py").write_text("from trl import SFTConfig\n", encoding="utf-8")
    assert main(["convert", str(tmp_path / "train.py")]) == 1
    assert "trainer.args.to_json_string()" in capsys.readouterr().err


ALL_TURNS = "data.samples: of conversations the assistant's turns are trained on; TRL trains on all turns"


@pytest.mark.parametrize(
    ("arguments", "is_noted"),
    [({}, True), ({"assistant_only_loss": False}, True), ({"assistant_only_loss": True}, False)],
)
def test_turns_of_the_user_that_trl_trains_on_are_noted(arguments: dict[str, Any], is_noted: bool) -> None:
    conversion = convert_trl(arguments, "sft", options_of("sft"))
    assert any(line.startswith(ALL_TURNS) for line in conversion.notes) == is_noted
    assert not conversion.left


@pytest.mark.parametrize(("value", "left"), [(None, 0), (True, 0), (False, 1)])
def test_prompts_that_trl_trains_on_are_named(value: bool | None, left: int) -> None:
    assert len(convert_trl({"completion_only_loss": value}, "sft", options_of("sft")).left) == left


@pytest.mark.parametrize(("value", "is_noted"), [(None, True), (False, True), (True, False)])
def test_dropout_of_trl_is_noted_where_there_is_none(value: bool | None, is_noted: bool) -> None:
    arguments = {} if value is None else {"disable_dropout": value}
    conversion = convert_trl(arguments, "grpo", options_of("grpo"))
    assert any(line.startswith("dropout: there is none here") for line in conversion.notes) == is_noted
    assert not conversion.left


def test_the_order_of_rows_is_named_where_trl_does_not_shuffle() -> None:
    given = {"train_sampling_strategy": "sequential"}
    assert len(convert_trl(given, "sft", options_of("sft")).left) == 1
    assert not convert_trl(given, "dpo", options_of("dpo"), method="kto").left  # the default of TRL's KTOConfig


@pytest.mark.parametrize("loss", ["sigmoid", "simpo", "alphapo"])
def test_the_alpha_of_alphapo_is_named_with_every_loss(loss: str) -> None:
    [left] = convert_trl({"loss_type": loss, "alpha": 0.2}, "dpo", options_of("dpo"), method="cpo").left
    assert left.startswith("alpha = 0.2: few use AlphaPO")


def test_a_file_of_to_json_string_has_nothing_that_is_not_converted() -> None:
    """Defaults of TRL 1.16's configurations, as `to_json_string()` writes them, of arguments without an option here."""
    written = {
        "logging_strategy": "steps", "project": "huggingface", "hub_token": "<HUB_TOKEN>",
        "train_sampling_strategy": "random",
        "accelerator_config": {
            "split_batches": False, "dispatch_batches": None, "even_batches": True, "use_seedable_sampler": True,
            "non_blocking": False, "gradient_accumulation_kwargs": None,
        },
    }  # fmt: skip
    reference = {"sync_ref_model": False, "ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}
    assert not convert_trl({**written, **reference}, "dpo", options_of("dpo")).left
    changed = {**written["accelerator_config"], "even_batches": False}  # type: ignore[dict-item]
    assert len(convert_trl({**written, "accelerator_config": changed}, "dpo", options_of("dpo")).left) == 1
    server = {**written, "vllm_gpu_memory_utilization": 0.55}
    assert not convert_trl(server, "online_dpo", options_of("online_dpo"), method="online_dpo").left


@pytest.mark.parametrize(
    ("arguments", "trainer"),
    [
        ({"num_generations": 2, "max_completion_length": 8, "normalize_advantages": False}, "rloo"),
        ({"precompute_ref_log_probs": False, "desirable_weight": 1.0}, "kto"),
        ({"label_smoothing": 0.0, "cpo_alpha": 1.0}, "cpo"),
        ({"max_completion_length": None, "padding_value": None}, "orpo"),
        ({"precompute_ref_log_probs": False, "padding_value": None}, "dpo"),  # of older versions
        ({"loss_type": "sigmoid", "padding_value": 0}, "dpo"),
    ],
    ids=str,
)
def test_a_trainer_is_found_by_what_it_has_beside_the_arguments_of_others(
    arguments: dict[str, Any], trainer: str
) -> None:
    assert trainer_of(arguments) == trainer


def test_the_trainer_that_was_found_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "any.json").write_text(json.dumps({"num_generations": 2, "beta": 0.1}), encoding="utf-8")
    words = ["convert", str(tmp_path / "any.json"), "--out", str(tmp_path / "run.yaml")]
    line = "check: trainer.name: the arguments are read as those of TRL's grpo; --trainer names another"
    assert main(words) == 0
    assert line in capsys.readouterr().err
    assert main([*words, "--trainer", "rloo"]) == 0
    assert line not in capsys.readouterr().err
    assert load_yaml(tmp_path / "run.yaml")["trainer"]["preset"] == "rloo"


@pytest.mark.parametrize(
    ("named", "trainer"),
    [("SFTTrainer", "sft"), ("RLOOTrainer", "grpo"), ("OnlineDPOTrainer", "online_dpo"), ("online_dpo", "online_dpo")],
)
def test_a_trainer_may_be_named_by_its_class(tmp_path: Path, named: str, trainer: str) -> None:
    (tmp_path / "any.json").write_text(json.dumps({"learning_rate": 1e-5}), encoding="utf-8")
    words = ["convert", str(tmp_path / "any.json"), "--out", str(tmp_path / "run.yaml"), "--trainer", named]
    assert main(words) == 0
    assert load_yaml(tmp_path / "run.yaml")["trainer"]["name"] == trainer


@pytest.mark.parametrize(
    ("arguments", "is_noted"),
    [({}, True), ({"train_sampling_strategy": "sequential"}, True), ({"train_sampling_strategy": "random"}, False)],
)
def test_kto_files_note_that_rows_are_shuffled(
    tmp_path: Path, arguments: dict[str, Any], is_noted: bool, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "any.json").write_text(json.dumps({"learning_rate": 1e-6, **arguments}), encoding="utf-8")
    words = ["convert", str(tmp_path / "any.json"), "--out", str(tmp_path / "run.yaml"), "--trainer", "kto"]
    assert main(words) == 0
    line = "check: data.samples: are shuffled in each pass; TRL's KTO keeps their order by default"
    assert (line in capsys.readouterr().err) == is_noted
