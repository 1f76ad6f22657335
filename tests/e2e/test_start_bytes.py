"""Tests that a rank that divides a model reads its own rows, and never holds the whole model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from e2e_processes import run_ranks
from planned_models import make_folder, ppo_run, sft_run
from safetensors.torch import load_file
from test_asked_weights import BLOCK, HEAD, OUTSIDE, TENSOR, WHOLE
from transformers import AutoModelForCausalLM
from warm_python import WarmPython

from rlcore_tools.plan.estimate import estimate

CHILD = str(Path(__file__).with_name("e2e_start_bytes.py"))
NORMS = 4 * 2 * 256
"""Bytes of the norms of a block."""
REST = 600_000
"""Bytes of the batches with which the model is tried out before training."""
STARTS = ("usual", "rows")
Train = Callable[..., tuple[list[dict[str, Any]], Path]]


@pytest.fixture
def train(warm_python: WarmPython, tmp_path: Path) -> Train:
    """Return a function that trains on two ranks after a start; it returns their counts and the run's folder."""

    def run_start(values: dict[str, Any], how: str, *, steps: int) -> tuple[list[dict[str, Any]], Path]:
        place = tmp_path / how
        place.mkdir()
        run = values["run"] | {"root": str(place), "steps": steps}
        (place / "run.json").write_text(json.dumps(values | {"run": run}))
        done = run_ranks(warm_python, 2, [CHILD, str(place), str(place / "run.json"), how])
        assert done.returncode == 0, done.stderr[-3000:]
        return [json.loads((place / f"start-{rank}.json").read_text()) for rank in range(2)], place / "run"

    return run_start


@pytest.fixture
def half_folder(tmp_path: Path) -> Path:
    """Return the folder of a model whose files have 16 bits a weight."""
    folder = make_folder(tmp_path / "start")
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("shard", "parts", "options"),
    [
        ("fsdp", WHOLE - HEAD // 2, {}),  # half of the model, of the head and of the reference
        # the same, and half of a value function's own copy of all blocks and the embeddings
        ("fsdp", WHOLE - HEAD // 2 + (WHOLE - HEAD - TENSOR) // 2, {"critic": "copy"}),
        ("fsdp", WHOLE - HEAD // 2 + (BLOCK + 4 * 256) // 2, {"value_layers": 1}),  # of one block and the norm
        # half of the model and its head; the reference has its own upper blocks, norm and output embeddings only
        ("fsdp", WHOLE // 2 + (2 * BLOCK + 4 * 256 + TENSOR) // 2, {"unfrozen_layers": 2}),
        # half of the linear layers and of the reference; embeddings, norms and the head are whole
        ("tp", OUTSIDE + 6 * NORMS + 3 * (BLOCK - NORMS) + HEAD + (WHOLE - HEAD) // 2, {}),
        # the same as fsdp; half of a second copy and of gradients, and a buffer of DeepSpeed to reduce gradients
        ("zero3", WHOLE - HEAD // 2 + WHOLE // 2 + WHOLE // 2 + WHOLE, {}),
    ],
)
def test_a_rank_holds_its_own_part_of_a_model_at_the_start(
    train: Train, half_folder: Path, shard: str, parts: int, options: dict[str, Any]
) -> None:
    """The files have 16 bits a weight and the run 32; for the KL penalty of PPO a reference is divided beside it."""
    values = ppo_run(half_folder, shard)
    values = values | {"model": values["model"] | options}
    found, weights = dict[str, list[dict[str, Any]]](), []
    for how in STARTS:
        found[how], run_dir = train(values, how, steps=2)
        weights.append(load_file(run_dir / "model/model.safetensors"))
    (planned,) = [each for each in estimate(values, "test", world=2).measured.phases if each.name == "start"]
    print(found, planned)
    for usual, rows in zip(found["usual"], found["rows"], strict=True):
        assert usual["peak"] >= 2 * WHOLE
        assert parts <= rows["held"] <= parts + REST
        assert planned.peak == pytest.approx(rows["held"], rel=0.05)
        assert rows["peak"] <= parts + OUTSIDE + HEAD + BLOCK + REST
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


@pytest.mark.nightly
def test_a_rank_holds_its_own_part_of_a_model_with_an_adapter_at_the_start(train: Train, half_folder: Path) -> None:
    """Files and run have 16 bits a weight, and the adapter 32; without it the model is its own reference."""
    values = ppo_run(half_folder, "fsdp")
    adapter = {"type": "lora", "r": 4, "target_modules": ["q_proj", "v_proj"]}
    values = values | {"model": values["model"] | {"dtype": "bfloat16", "peft": adapter}}
    size, small = (WHOLE - HEAD) // 2, HEAD + 4 * 6 * 2 * 2 * 4 * 256
    weights = []
    for how in STARTS:
        counts, run_dir = train(values, how, steps=2)
        for found in counts:
            print(how, found)
            parts = size // 2 + (size if how == "usual" else 0)
            assert parts <= found["held"] <= parts + small + REST
            assert found["peak"] <= parts + small + (OUTSIDE + BLOCK) // 2 + REST
        weights.append(load_file(run_dir / "model/model.safetensors"))
    assert all(torch.equal(weight, weights[1][name]) for name, weight in weights[0].items())


@pytest.mark.nightly
def test_a_model_of_other_files_than_the_run_wants_is_loaded_whole_as_planned(train: Train, tmp_path: Path) -> None:
    """The files have 32 bits a weight and the run 16, in which some models keep other weights than in 32."""
    values = sft_run(make_folder(tmp_path / "start"), "fsdp", 0)
    values = values | {"model": values["model"] | {"dtype": "bfloat16"}}
    counts, _ = train(values, "rows", steps=1)
    (planned,) = [each for each in estimate(values, "test", world=2).measured.phases if each.name == "start"]
    for counted in counts:
        print(counted, planned)
        assert planned.peak == pytest.approx(counted["peak"], rel=0.05)
