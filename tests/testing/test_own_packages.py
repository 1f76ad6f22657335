"""The core, its models and the algorithms beside it keep every law of the kit, as a stranger's packages must."""

from __future__ import annotations

import importlib.util

import pytest

from rlcore_testing import Case, conformance
from rlcore_testing.law import laws_in
from rlcore_testing.laws import optimizers

NEEDED = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 5},
    "step": {"step_size": 10},
    "exponential": {"gamma": 0.9},
}
"""What some components cannot do without."""
ILQL = {"batch_size": 3, "sync_every": 2, "target_rate": 0.5, "awac_beta": 0.5}
PPO = {
    "rollouts": 10, "batch_size": 4, "kl_coef": 0.1, "kl_target": 1.0, "kl_horizon": 100, "entropy_coef": 0.01,
    "score_scaling": "running", "bootstrap_truncated": True, "missing_eos_penalty": 0.1,
}  # fmt: skip
"""Options with as much state and as many terms of the loss as there are, and batches that do not divide the data."""
MISSING = (
    {}
    if importlib.util.find_spec("bitsandbytes")
    else {f"optimizer-adamw_8bit-{law.name}": "bitsandbytes is not installed" for law in laws_in(optimizers)}
)


@pytest.mark.parametrize("law", conformance("rlcore"))
def test_the_core_keeps_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize(
    "law", conformance("rlcore-transformers:transformers", options=NEEDED, expected_failures=MISSING)
)
def test_the_models_of_transformers_keep_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize("law", conformance("rlcore-ilql", options={"ilql": ILQL}))
def test_ilql_keeps_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize("law", conformance("rlcore-ppo", options={"ppo": PPO}))
def test_ppo_keeps_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize("law", conformance("rlcore-sft", options={"sft": {"batch_size": 3}}))
def test_sft_keeps_the_law(law: Case) -> None:
    law()
