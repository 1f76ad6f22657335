from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from rlcore_testing import Case, conformance
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.reward.reward_model import build_vision_scorer
from rlcore_vision.tiny_families import FAMILIES

FOLDER = Path(tempfile.mkdtemp(prefix="rlcore-vision-")) / "scorer"
CONFIG, PROCESSOR = FAMILIES["llava"]()
torch.manual_seed(0)
build_vision_scorer(CONFIG, VisionLanguageConfig(), tokenizer=PROCESSOR).save_pretrained(FOLDER)
OPTIONS = {"vision_reward_model": {"path": str(FOLDER), "device": "cpu"}}


@pytest.mark.parametrize("law", conformance("rlcore-vision", options=OPTIONS))
def test_law(law: Case) -> None:
    law()
