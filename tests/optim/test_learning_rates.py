"""Tests of learning rates that a run does not set: those of the trainer's paper, adapted to the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn
from transformers import GPT2LMHeadModel, PreTrainedTokenizerBase

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.hookspecs import Services
from rlcore.optim import optimization
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig
from rlcore_dpo.config import DPOConfig
from rlcore_dpo.online_config import OnlineDPOConfig
from rlcore_grpo.config import GRPOConfig, GRPOOptimizer
from rlcore_ilql.config import ILQLConfig
from rlcore_ppo.config import PPOConfig
from rlcore_transformers.optimizers.learning_rate_rule import adapted_rate


class Policy:
    """A policy of one matrix of 40 x 25 = 1000 parameters."""

    version = 0

    def __init__(self) -> None:
        self.module = nn.Linear(25, 40, bias=False)

    def use_forward(self, forward: Any, *, autocast: Any) -> None:
        """Do nothing."""


@pytest.mark.parametrize("size", [7e9, 8e9, 7e10, 1e12])
def test_a_model_of_the_published_size_or_a_larger_one_has_the_published_rate(size: float) -> None:
    assert adapted_rate(1e-6, 7e9, size) == 1e-6


def test_the_rate_grows_with_the_root_of_the_ratio_of_parameters() -> None:
    assert adapted_rate(1e-6, 7e9, 7e7) == 1e-5  # a hundredth of the parameters
    assert adapted_rate(3e-5, 124e6, 31e6) == 6e-5  # a quarter


def test_the_rate_is_at_most_that_of_training_from_scratch() -> None:
    # .003239 - .0001395 * ln(10,000) = .003239 - .0001395 * 9.21034 = .001954
    assert adapted_rate(5e-5, 124e6, 1e4) == 2e-3


def test_an_adapter_has_ten_times_the_rate_of_full_weights_but_no_model_less_than_published() -> None:
    assert adapted_rate(1e-6, 7e9, 7e9, is_adapter=True) == 1e-5
    assert adapted_rate(1e-6, 7e9, 7e7, is_adapter=True) == 1e-4
    assert adapted_rate(5e-5, 124e6, 124e8, is_adapter=True) == 5e-5
    assert adapted_rate(3e-5, 124e6, 124e10, is_adapter=True) == 3e-5


@pytest.mark.parametrize(
    ("options", "size", "weights", "adapter"),
    [
        (DPOConfig, 7e9, 1e-6, 6.3e-6),  # 10 * 1e-6 * sqrt(2.8 / 7) = 6.32e-6
        (DPOConfig, 2.8e7, 1e-5, 1e-4),  # a hundredth of the parameters
        (ILQLConfig, 7e9, 5e-5, 6.7e-5),  # 10 * 5e-5 * sqrt(.124 / 7) = 6.65e-5
        (ILQLConfig, 31e6, 1e-4, 1e-3),  # a quarter
        (GRPOConfig, 7e7, 1e-5, 1e-4),  # a hundredth
        (PPOConfig, 1e9, 1e-6, 1e-5),
        (PPOConfig, 1e7, 1e-5, 1e-4),  # a hundredth
    ],
)
def test_trainers_without_a_rate_have_that_of_their_paper(
    options: type, size: float, weights: float, adapter: float
) -> None:
    optimizer = options().optimizer
    assert optimizer.lr is None
    assert adapted_rate(*optimizer.published, size) == weights
    assert adapted_rate(*optimizer.published, size, is_adapter=True) == adapter


def test_the_rate_of_online_dpo_is_the_same_for_every_model_unless_it_is_null() -> None:
    assert OnlineDPOConfig().optimizer.lr == 1e-6
    assert structure(OnlineDPOConfig, {"optimizer": {"betas": [0.9, 0.99]}}).optimizer.lr == 1e-6
    assert adapted_rate(*structure(OnlineDPOConfig, {"optimizer": {"lr": None}}).optimizer.published, 2.8e7) == 1e-5


def test_an_updater_without_a_rate_has_that_of_its_model() -> None:
    updater = Updater(Policy(), GRPOOptimizer(), Ranks(), total_updates=4)  # type: ignore[arg-type]  # minimal
    # 1e-6 * sqrt(7e9 / 1000) = 2.65e-3, above .003239 - .0001395 * ln(1000) = 2.275e-3
    assert (updater.config.lr, updater.lr) == (2.3e-3, 2.3e-3)


def test_a_rate_that_is_set_is_used_as_it_is() -> None:
    updater = Updater(Policy(), GRPOOptimizer(lr=1e-6), Ranks(), total_updates=4)  # type: ignore[arg-type]  # minimal
    assert updater.lr == 1e-6


def test_other_options_of_a_trainer_leave_its_rate_to_the_model() -> None:
    options = structure(GRPOConfig, {"optimizer": {"scheduler": "linear"}}).optimizer
    assert (options.lr, options.published, options.scheduler) == (None, (1e-6, 7e9), "linear")
    assert structure(GRPOConfig, {"optimizer": OptimizerConfig(lr=0.1)}).optimizer.lr == 0.1


def test_without_a_plugin_that_has_a_rate_the_error_names_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimization, "services", Services)
    with pytest.raises(ConfigError, match=r"trainer\.optimizer\.lr = null: no plugin has a learning rate"):
        Updater(Policy(), GRPOOptimizer(), Ranks(), total_updates=4)  # type: ignore[arg-type]  # minimal


def train(model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, **run: Any) -> rlcore.Result:
    """Train by GRPO with its own learning rate."""
    return rlcore.train(
        model,
        tokenizer=tokenizer,
        trainer={"name": "grpo", "rollouts": 4, "num_generations": 2},
        prompts=["ab", "ba"],
        reward_fn=lambda outputs: [float(each.count("a")) for each in outputs],
        gen={"max_new_tokens": 8},
        loggers=[],
        eval={"at_end": False},
        run={"root": str(folder), "name": "run", "steps": 2, "report": False, **run},
    )


def rate_of(model: nn.Module, *, published: float = 1e-6, size: float = 7e9, factor: float = 1.0) -> float:
    """Return the rate for a small model, by default that of GRPO, by a formula of its own."""
    count = sum(each.numel() for each in model.parameters())
    return float(f"{factor * min(published * (size / count) ** 0.5, 0.003239 - 0.0001395 * math.log(count)):.1e}")


@pytest.mark.parametrize("options", [{}, {"unfrozen_layers": 1}])
def test_a_run_trains_with_the_rate_of_its_model_frozen_layers_included(
    options: dict[str, Any], tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    result = train({"path": tiny_gpt2, **options}, char_tokenizer, tmp_path)
    assert result.metrics["lr"] == rate_of(tiny_gpt2)
    recorded = yaml.safe_load((result.run_dir / "config.yaml").read_text(encoding="utf-8"))
    assert recorded["trainer"]["optimizer"]["lr"] is None


def test_a_run_with_an_adapter_has_ten_times_the_rate(
    tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    result = train({"path": tiny_gpt2, "peft": {"type": "lora", "r": 1}}, char_tokenizer, tmp_path)
    assert result.metrics["lr"] == rate_of(tiny_gpt2, factor=10.0)  # the model has the adapter's parameters by now


def test_a_resumed_run_goes_on_with_the_rate_of_its_model(
    tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    tiny_gpt2.save_pretrained(start)
    whole = train(str(start), char_tokenizer, tmp_path, name="whole", steps=3)
    train(str(start), char_tokenizer, tmp_path, name="parts", steps=1)
    parts = train(str(start), char_tokenizer, tmp_path, name="parts", steps=3, resume="auto")
    names = ("lr", "loss/policy", "grad/norm")
    assert [parts.metrics[name] for name in names] == [whole.metrics[name] for name in names]


OFFLINE: dict[str, dict[str, Any]] = {
    "dpo": {"samples": [{"prompt": "ab", "chosen": "a", "rejected": "b"}] * 2},
    "ilql": {"samples": [["ab", "a"], ["ab", "b"]], "rewards": [1.0, 0.0]},
}


@pytest.mark.parametrize(("trainer", "published", "size"), [("dpo", 1e-6, 2.8e9), ("ilql", 5e-5, 124e6)])
def test_runs_of_offline_trainers_have_the_rates_of_their_models(
    trainer: str, published: float, size: float, tiny_gpt2: GPT2LMHeadModel, char_tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
) -> None:  # fmt: skip
    result = rlcore.train(
        tiny_gpt2, tokenizer=char_tokenizer, trainer={"name": trainer, "batch_size": 2}, **OFFLINE[trainer],
        loggers=[], eval={"at_end": False}, run={"root": str(tmp_path), "steps": 1, "report": False},
    )  # fmt: skip
    assert result.metrics["lr"] == rate_of(tiny_gpt2, published=published, size=size)
