"""Tests that `rlcore plan` prints the learning rate with which a run will train."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import yaml
from planning_making import folders, ppo
from transformers import AutoModelForCausalLM

from rlcore.cli import main

__all__ = ["folders"]  # a fixture


@pytest.mark.slow
def test_a_plan_prints_the_rate_that_follows_the_model_and_one_that_is_set(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ppo(folders["llama"])
    values["trainer"] = {"name": "grpo", "rollouts": 16, "num_generations": 4, "optimizer": {"lr": None}}
    values["data"]["reward_fn"] = "operator:length_hint"
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    size = sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(folders["llama"]).parameters())
    expected = float(f"{1e-6 * math.sqrt(7e9 / size):.1e}")  # GRPO's rate was published for 7e9 parameters
    for more, line, rate, follows in (
        ([], f"trainer.optimizer.lr = {expected:g}, which follows the model", expected, True),
        (["trainer.optimizer.lr=0.00025"], "trainer.optimizer.lr = 0.00025", 0.00025, False),
    ):
        assert main(["plan", str(tmp_path / "run.yaml"), *more]) == 0
        assert line in capsys.readouterr().out.splitlines()
        assert main(["plan", str(tmp_path / "run.yaml"), *more, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["learning_rates"] == {"trainer.optimizer.lr": {"value": rate, "follows_model": follows}}
