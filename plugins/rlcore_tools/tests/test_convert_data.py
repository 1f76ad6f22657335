"""`rlcore convert` of TRL's mixtures of data sets, of losses without a reference, and of false where true is meant."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.plugins.registry import all_registries
from rlcore_tools.conversion.conversion import Conversion
from rlcore_tools.conversion.trl_arguments import convert_trl, trainer_of
from rlcore_transformers.data.sources import parse_mixture


def convert(trainer: str, method: str = "", **arguments: Any) -> Conversion:
    return convert_trl(arguments, trainer, all_registries().trainers.get(trainer).config_class(), method=method)


DATASETS = [
    {"path": "openai/gsm8k", "name": "main", "split": "train[:100]"},
    {"path": "json", "data_files": ["a.jsonl", "b.jsonl"], "split": "train", "columns": ["prompt", "completion"]},
]


def test_data_sets_become_a_mixture_without_weights() -> None:
    conversion = convert("sft", datasets=DATASETS, streaming=True, test_split_size=0.1)
    found = conversion.values["data"]["samples"]
    assert found == [{"path": "openai/gsm8k:main:train[:100]"}, {"path": ["a.jsonl", "b.jsonl"]}]
    assert [source.weights for source in parse_mixture(found, "samples") or ()] == [(), ()]
    left = "\n".join(conversion.left)
    for name in ("datasets[1].columns", "streaming", "test_split_size"):
        assert name in left


def test_one_data_set_becomes_a_source_that_can_be_streamed() -> None:
    conversion = convert("sft", datasets=[{"path": "org/name", "name": None, "split": "train"}], streaming=True)
    assert conversion.values["data"]["samples"] == "org/name:train"
    assert conversion.values["data"]["streaming"] is True
    prompts = convert("grpo", "grpo", datasets=[{"path": "org/name"}])
    assert prompts.values["data"]["prompts"] == "org/name"


@pytest.mark.parametrize(("entry", "named"), [
    ({"path": "org/name", "fraction": 0.2}, "datasets[0].fraction"),
    ({"path": "json", "data_files": {"train": "a.jsonl"}}, "datasets[0].data_files"),
    ({"name": "main"}, "datasets[0]"),
])  # fmt: skip
def test_what_a_source_cannot_have_is_named(entry: dict[str, Any], named: str) -> None:
    assert any(line.startswith(f"{named} =") for line in convert("sft", datasets=[entry]).left)


@pytest.mark.parametrize(("given", "expected"), [
    ({}, {"loss": "cpo", "sft_coef": 1.0, "beta": 0.1}),
    ({"loss_type": "simpo", "simpo_gamma": 0.4, "cpo_alpha": 0.0}, {"loss": "simpo", "sft_coef": 0.0, "gamma": 0.4}),
    ({"loss_type": "simpo"}, {"loss": "simpo", "sft_coef": 1.0}),
])  # fmt: skip
def test_losses_without_a_reference_have_the_weight_of_the_likelihood(
    given: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = convert("dpo", "cpo", **given).values["trainer"]
    assert {name: found[name] for name in expected} == expected
    if given:
        assert trainer_of(given) == "cpo"


def test_losses_without_a_reference_that_do_not_exist_here_are_named() -> None:
    assert any(line.startswith("loss_type = ") for line in convert("dpo", "cpo", loss_type="ipo").left)
    assert any(line.startswith("alpha = 0.5") for line in convert("dpo", "cpo", loss_type="alphapo", alpha=0.5).left)


def test_the_likelihood_of_orpo_is_that_of_the_prompt_too() -> None:
    found = convert("dpo", "orpo", beta=0.2).values["trainer"]
    assert (found["loss"], found["nll"], found["beta"]) == ("orpo", "full", 0.2)


@pytest.mark.parametrize(("trainer", "name", "value", "is_named"), [
    ("grpo", "shuffle_dataset", False, True),
    ("grpo", "shuffle_dataset", True, False),
    ("sft", "shuffle_dataset", False, False),
    ("sft", "average_tokens_across_devices", False, True),
    ("sft", "average_tokens_across_devices", True, False),
    ("sft", "remove_unused_columns", False, True),
    ("grpo", "remove_unused_columns", False, False),
    ("sft", "do_predict", False, False),
    ("sft", "lora_task_type", "CAUSAL_LM", False),
    ("sft", "lora_task_type", "SEQ_2_SEQ_LM", True),
])  # fmt: skip
def test_false_is_named_where_it_is_not_the_default(trainer: str, name: str, value: Any, is_named: bool) -> None:
    assert any(line.startswith(f"{name} =") for line in convert(trainer, trainer, **{name: value}).left) is is_named
