from __future__ import annotations

from typing import Any

import pytest
from held_laws import hold

from rlcore_testing import Case, conformance

SMALL = {"rollouts": 8, "num_generations": 2, "optimizer": {"lr": 1e-2}}
OPTIONS = {"grpo": SMALL}
VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"config": {"model": {"peft": {"type": "lora", "r": 2}}}},
    "bf16": {"config": {"run": {"mixed_precision": "bf16"}}},
}
HARDEST = {  # in bfloat16, the batches of two processes round differently
    "resume_is_exact": ("lora", "bf16"), "two_processes_equal_one": ("lora",),
}  # fmt: skip


@pytest.mark.parametrize("law", conformance("rlcore-grpo", options=OPTIONS))
def test_law(law: Case) -> None:
    law()


@pytest.mark.nightly
@pytest.mark.parametrize(("variant", "law"), [
    (variant, law) for law, variants in HARDEST.items() for variant in variants
])  # fmt: skip
def test_the_laws_hold_with_further_options(variant: str, law: str) -> None:
    hold("rlcore-grpo", law, **{"options": OPTIONS, **VARIANTS[variant]})
