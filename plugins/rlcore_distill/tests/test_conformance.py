from __future__ import annotations

from typing import Any

import pytest
from distill_making import teacher_folder
from held_laws import hold

from rlcore_testing import Case, conformance

SMALL = {"teacher": teacher_folder(), "batch_size": 4, "optimizer": {"lr": 1e-2}}
OPTIONS: dict[str, dict[str, Any]] = {
    "distill": SMALL, "distill_prompts": {**SMALL, "on_policy": 0.5}, "teacher": {"path": teacher_folder(300)},
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"config": {"model": {"peft": {"type": "lora", "r": 2}}}},
    "bf16": {"config": {"run": {"mixed_precision": "bf16"}}},
    "reverse_kl": {"options": {**OPTIONS, "distill": {**SMALL, "divergence": "reverse_kl", "on_policy": 0.0}}},
}
HARDEST = {  # in bfloat16, the batches of two processes round differently
    "resume_is_exact": ("lora", "bf16"), "two_processes_equal_one": ("lora", "reverse_kl"),
}  # fmt: skip


@pytest.mark.parametrize("law", conformance("rlcore-distill", options=OPTIONS))
def test_law(law: Case) -> None:
    law()


@pytest.mark.nightly
@pytest.mark.parametrize(("variant", "law"), [
    (variant, law) for law, variants in HARDEST.items() for variant in variants
])  # fmt: skip
def test_the_laws_hold_with_further_options(variant: str, law: str) -> None:
    hold("rlcore-distill", law, of="trainer-distill-", **{"options": OPTIONS, **VARIANTS[variant]})
