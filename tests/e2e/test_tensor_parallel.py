"""Tests that a run whose layers several processes compute together equals the run of one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from depths import by_day
from e2e_processes import lines, newest_checkpoint, run_two_ranks
from safetensors.torch import load_file
from test_sharding import check_same, files_of, train_on  # noqa: F401  a fixture
from warm_python import WarmPython

from rlcore_testing.small import make_llama

Train = Callable[..., str]
TP = {"shard": "tp"}
CHILD = str(Path(__file__).with_name("e2e_tensor_parallel.py"))


def check_same_metrics(one: Path, other: Path) -> None:
    rows = [lines(run / "metrics.jsonl") for run in (one, other)]
    assert len(rows[0]) == len(rows[1]) >= 3
    for first, second in zip(*rows, strict=True):
        assert first == pytest.approx(second, rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", by_day(["sft", "ppo"], ["ppo"]))
def test_two_ranks_that_divide_layers_learn_and_log_what_one_process_does(
    train_on: Train, tmp_path: Path, name: str  # noqa: F811
) -> None:  # fmt: skip
    train_on(1, name, "one")
    train_on(2, name, "two", **TP)
    check_same(tmp_path, name, "one", "two")
    check_same_metrics(tmp_path / f"one-{name}", tmp_path / f"two-{name}")


@pytest.mark.nightly
@pytest.mark.parametrize(
    "names",
    [
        "sft_qwen3,sft_checkpointing,sft_tied,ilql,ppo_skip", "ppo_trunk,ppo_critic,ppo_branch,ppo_low,grpo_moving",
        "dpo,reward,climb,few_ppo,few_grpo,few_dpo,few_reward",
    ],
)  # fmt: skip
def test_every_trainer_and_every_part_of_a_policy_learns_what_one_process_learns(
    train_on: Train, tmp_path: Path, names: str  # noqa: F811
) -> None:  # fmt: skip
    train_on(1, names, "one")
    train_on(2, names, "two", **TP)
    check_same(tmp_path, names, "one", "two")


@pytest.mark.nightly
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit_and_other_strategies_resume_it(
    train_on: Train, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    names = "sft,ppo"
    train_on(2, names, "straight", steps=6, **TP)
    for steps in (2, 6):
        train_on(2, names, "resumed", steps=steps, resume="auto", **TP)
    for name in names.split(","):
        for file in files_of(tmp_path / f"straight-{name}"):
            if file.endswith(".safetensors"):
                first, second = (load_file(tmp_path / f"{run}-{name}" / file) for run in ("straight", "resumed"))
                assert first.keys() == second.keys()
                assert all(torch.equal(each, second[key]) for key, each in first.items()), f"{name}: {file}"
    for world, steps, shard in ((2, 1, "tp"), (1, 2, "none"), (2, 3, "fsdp"), (2, 5, "tp"), (2, 6, "fsdp")):
        train_on(world, names, "changing", steps=steps, shard=shard, resume="auto")
        assert newest_checkpoint(tmp_path / "changing-sft").name == f"{steps:08}"
    check_same(tmp_path, names, "straight", "changing")


@pytest.mark.nightly
def test_bf16_rounds_hidden_states_of_the_parts_and_stays_close_to_whole_layers(
    train_on: Train, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    train_on(2, "sft", "whole", mixed_precision="bf16")
    train_on(2, "sft", "divided", mixed_precision="bf16", **TP)
    first, second = (load_file(tmp_path / f"{run}-sft/model/model.safetensors") for run in ("whole", "divided"))
    worst = max(float((each - second[name]).abs().max()) for name, each in first.items())
    assert 0 < worst < 2e-3  # a step of three changes a weight by 3e-3 at the most


@pytest.mark.slow
def test_each_of_two_ranks_keeps_half_of_the_layers_and_a_saved_model_has_exactly_these_halves(
    warm_python: WarmPython, tmp_path: Path
) -> None:
    done = run_two_ranks(warm_python, [CHILD, str(tmp_path)])
    assert done.returncode == 0, done.stderr[-3000:]
    sizes = {name: weight.numel() for name, weight in make_llama().named_parameters()}
    divided = sum(size for name, size in sizes.items() if "_proj" in name)
    for rank in (0, 1):
        held = json.loads((tmp_path / f"held-{rank}.json").read_text())
        heads = held.pop("heads")
        assert heads > 0
        parts = sum(sizes.values()) - divided // 2
        assert held == {
            "names": True, "differ": [], "untrained": [], "parts": parts, "moments": parts + heads, "whole": 0,
        }  # fmt: skip
