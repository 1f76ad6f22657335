from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from rlcore.models.model_options import SequenceScorerConfig
from rlcore.models.scorer import build_sequence_scorer
from rlcore.testing import Case, conformance
from rlcore.testing.small import make_llama, make_tokenizer

FOLDER = Path(tempfile.mkdtemp(prefix="rlcore-reward-")) / "rm"
torch.manual_seed(0)
build_sequence_scorer(make_llama(), SequenceScorerConfig(), tokenizer=make_tokenizer()).export(FOLDER)
OPTIONS = {
    "reward": {"batch_size": 4, "optimizer": {"lr": 1e-2}},
    "reward_model": {"path": str(FOLDER), "batch_size": 4, "device": "cpu"},
}


@pytest.mark.parametrize("law", conformance("rlcore-reward", options=OPTIONS))
def test_law(law: Case) -> None:
    law()
