"""Tests that trainers learn the same from scattered rounds as from whole ones, and receive fewer bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from depths import by_day

from rlcore_testing.rig.isolate import call_on_two_ranks

TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"name": "ppo", "rollouts": 14, "batch_size": 6, "epochs": 2, "kl_coef": 0.1, "kl_target": 0.5},
    "ppo in parts": {
        "name": "ppo", "rollouts": 14, "batch_size": 7, "epochs": 1, "micro_batch_tokens": 20,
        "bootstrap_truncated": True, "score_scaling": "running",
    },
    "grpo": {"name": "grpo", "rollouts": 28, "num_generations": 4, "kl_coef": 0.05, "minibatches": 2},
    "grpo in parts": {
        "name": "grpo", "rollouts": 20, "num_generations": 4, "iterations": 2, "micro_batch_tokens": 30,
        "mask_truncated": True, "norm": "sequence",
    },
    "grpo that refills": {
        "name": "grpo", "rollouts": 20, "num_generations": 4, "zero_spread": "refill", "kl_coef": 0.05,
        "kl_in": "reward",
    },
    "online_dpo": {"name": "online_dpo", "batch_size": 7, "num_generations": 3, "sft_coef": 0.1},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    by_day(TRAINERS, ["ppo"]),
)
def test_trainers_learn_the_same_from_scattered_rounds(tmp_path: Path, name: str) -> None:
    scattered, whole = (
        call_on_two_ranks(
            "scattered_runs:learned",
            {"folder": str(tmp_path / str(is_whole)), "trainer": TRAINERS[name], "whole": is_whole},
            what=name,
        )
        for is_whole in (False, True)
    )
    assert scattered["received"].get("all_to_all_single", 0) > 0
    assert "all_to_all_single" not in whole["received"]
    assert scattered["weights"] == pytest.approx(whole["weights"], abs=1e-5)
    for one, other in zip(scattered["metrics"], whole["metrics"], strict=True):
        assert one == pytest.approx(other, abs=1e-4, nan_ok=True)
    print(name, scattered["received"], whole["received"])
