"""Tests that a run divided by DeepSpeed equals the run of one process; they need the package deepspeed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from e2e_processes import lines, newest_checkpoint
from test_sharding import EVERY, check_same, train_on  # noqa: F401  # a fixture

from rlcore_testing.small import make_llama

pytestmark = [
    pytest.mark.slow,  # deepspeed takes seconds to import
    pytest.mark.skipif(find_spec("deepspeed") is None, reason="deepspeed is not installed: make test-all does"),
]
Train = Callable[..., None]
GROUPS = (
    (2, "sft,ppo"), pytest.param(2, "ppo_skip", marks=pytest.mark.nightly),
    pytest.param(4, EVERY, marks=pytest.mark.nightly),
    *(
        pytest.param(world, names, marks=pytest.mark.nightly)
        for world, names in (
            (3, "few_ppo,few_grpo,few_dpo,few_reward"), (2, "sft_t5,ppo_t5"),
            (2, "sft_checkpointing,sft_lora,sft_tied,grpo_moving"),
            (2, "ppo_lora,ppo_trunk,ppo_critic,ppo_branch,ppo_low"),
        )
    ),
)  # fmt: skip
"""Numbers of ranks and runs; those that begin with `few` have fewer rows in a minibatch than there are ranks."""
both_stages = pytest.mark.parametrize("stage", ["zero2", "zero3"])


@pytest.mark.parametrize(("world", "names"), GROUPS)
def test_zero_on_several_ranks_learns_what_one_process_learns(
    train_on: Train, tmp_path: Path, world: int, names: str  # noqa: F811
) -> None:  # fmt: skip
    train_on(1, names, "one")
    for stage in ("zero2", "zero3"):
        train_on(world, names, stage, shard=stage)
        check_same(tmp_path, names, "one", stage)
        for name in set(names.split(",")) & {"sft", "ppo", "ppo_skip"}:
            one, divided = (column(tmp_path / f"{run}-{name}", "grad/norm") for run in ("one", stage))
            assert divided == pytest.approx(one, rel=1e-5)
    if "ppo_skip" in names:
        assert 0 < sum(column(tmp_path / "one-ppo_skip", "policy/skipped")) < 3 * 6


@pytest.mark.nightly
@both_stages
def test_memory_that_pads_parts_of_weights_is_no_number_of_a_run(
    train_on: Train, tmp_path: Path, stage: str  # noqa: F811
) -> None:  # fmt: skip
    train_on(1, "sft", "one", every=1)
    train_on(3, "sft", "divided", every=1, shard=stage, unset_is_nan=True)  # three ranks: sizes are no multiples of 3
    check_same(tmp_path, "sft", "one", "divided")


def column(run: Path, name: str) -> list[float]:
    """Return a column of metrics.jsonl, which has rows for evaluations too."""
    return [row[name] for row in lines(run / "metrics.jsonl") if name in row]


@both_stages
def test_each_of_two_ranks_keeps_half_of_what_its_stage_divides(
    train_on: Train, tmp_path: Path, stage: str  # noqa: F811
) -> None:  # fmt: skip
    train_on(2, "hold", "held", shard=stage)
    size = sum(weight.numel() for weight in make_llama().parameters())
    for rank in (0, 1):
        held = json.loads((tmp_path / f"held-{rank}.json").read_text())
        stranger, _, optimizer = held.pop("refusals")
        parts, whole = (size // 2, 0) if stage == "zero3" else (size, size)
        assert held == {"parts": parts, "moments": size // 2, "whole": whole, "streamed": size}
        assert f"run.shard = '{stage}': SFTTrainer does not implement rlcore.protocols.Divisible" in stranger
        assert "Adafactor needs whole weights and gradients" in optimizer


@pytest.mark.nightly
def test_a_run_resumed_with_another_strategy_and_number_of_ranks_equals_an_uninterrupted_one(
    train_on: Train, tmp_path: Path  # noqa: F811
) -> None:  # fmt: skip
    names = "sft,ppo,grpo_moving"
    train_on(1, names, "straight", steps=12)
    chain = ((2, "zero2"), (3, "zero3"), (1, "none"), (2, "zero3"), (2, "fsdp"), (1, "zero2"))
    for steps, (world, shard) in zip(range(2, 14, 2), chain, strict=True):
        train_on(world, names, "changing", steps=steps, shard=shard, resume="auto")
        assert newest_checkpoint(tmp_path / "changing-sft").name == f"{steps:08}"
    check_same(tmp_path, names, "straight", "changing")


@pytest.mark.nightly
@both_stages
def test_state_on_the_cpu_and_bf16_change_nothing(train_on: Train, tmp_path: Path, stage: str) -> None:  # noqa: F811
    names = "sft,ppo_skip"
    train_on(2, names, "whole", mixed_precision="bf16")
    train_on(2, names, "divided", mixed_precision="bf16", shard=stage, offload=True)
    check_same(tmp_path, names, "whole", "divided")
