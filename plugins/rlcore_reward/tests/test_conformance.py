from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from held_laws import hold

from rlcore_reward.config import SequenceScorerConfig
from rlcore_reward.scorer import build_sequence_scorer, build_step_scorer
from rlcore_testing import Case, conformance
from rlcore_testing.small import make_llama, make_tokenizer

FOLDER = Path(tempfile.mkdtemp(prefix="rlcore-reward-")) / "rm"
torch.manual_seed(0)
build_sequence_scorer(make_llama(), SequenceScorerConfig(), tokenizer=make_tokenizer()).export(FOLDER)
build_step_scorer(make_llama(), SequenceScorerConfig(), tokenizer=make_tokenizer()).export(FOLDER.with_name("prm"))
OPTIONS = {
    "reward": {"batch_size": 4, "optimizer": {"lr": 1e-2}},
    "process_reward": {"batch_size": 4, "optimizer": {"lr": 1e-2}},
    "reward_model": {"path": str(FOLDER), "batch_size": 4, "device": "cpu"},
    "process_reward_model": {"path": str(FOLDER.with_name("prm")), "batch_size": 4, "device": "cpu"},
}
EXPECTED = {
    "architecture-step_scorer-plain_transformers_gives_the_same_scores": "a score is a probability, not the logit; "
    "test_process_reward.py compares the logits of every token",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "lora": {"config": {"model": {"peft": {"type": "lora", "r": 2}}}},
    "bf16": {"config": {"run": {"mixed_precision": "bf16"}}},
}
HARDEST = {  # in bfloat16, the batches of two processes round differently
    "resume_is_exact": ("lora", "bf16"), "two_processes_equal_one": ("lora",),
}  # fmt: skip


@pytest.mark.parametrize("law", conformance("rlcore-reward", options=OPTIONS, expected_failures=EXPECTED))
def test_law(law: Case) -> None:
    law()


@pytest.mark.nightly
@pytest.mark.parametrize(("variant", "law"), [
    (variant, law) for law, variants in HARDEST.items() for variant in variants
])  # fmt: skip
def test_the_laws_hold_with_further_options(variant: str, law: str) -> None:
    hold("rlcore-reward", law, of="trainer-reward", **{"options": OPTIONS, **VARIANTS[variant]})
