"""Tests that a learning rate that follows the model does not depend on how processes divide the model."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from e2e_processes import run_two_ranks
from planned_models import make_folder, ppo_run
from transformers import AutoModelForCausalLM
from warm_python import WarmPython

CHILD = str(Path(__file__).with_name("e2e_default_rates.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "shard", ["none", "fsdp", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("tp", "zero2", "zero3"))]
)
def test_two_ranks_have_the_learning_rate_of_the_whole_model(
    warm_python: WarmPython, tmp_path: Path, shard: str
) -> None:
    if shard.startswith("zero"):
        pytest.importorskip("deepspeed")
    folder = make_folder(tmp_path / "model")
    values = ppo_run(folder, shard)
    values["trainer"] = {"name": "grpo", "rollouts": 4, "num_generations": 2}
    values["trainer"]["optimizer"] = {"lr": None}
    values["run"] |= {"root": str(tmp_path), "steps": 1}
    (tmp_path / "run.json").write_text(json.dumps(values))
    done = run_two_ranks(warm_python, [CHILD, str(tmp_path), str(tmp_path / "run.json")])
    assert done.returncode == 0, done.stderr[-3000:]
    size = sum(each.numel() for each in AutoModelForCausalLM.from_pretrained(folder).parameters())
    expected, halved = (float(f"{1e-6 * math.sqrt(7e9 / each):.1e}") for each in (size, size / 2))
    assert expected != halved
    assert [json.loads((tmp_path / f"rate-{shard}-{rank}.json").read_text()) for rank in range(2)] == [expected] * 2
