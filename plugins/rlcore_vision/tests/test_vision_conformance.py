from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch

from rlcore_testing import Case, conformance
from rlcore_vision.options import VisionLanguageConfig
from rlcore_vision.scorer import build_vision_scorer
from rlcore_vision.tiny_families import FAMILIES

FOLDER = Path(tempfile.mkdtemp(prefix="rlcore-vision-")) / "scorer"
CONFIG, PROCESSOR = FAMILIES["llava"]()
torch.manual_seed(0)
build_vision_scorer(CONFIG, VisionLanguageConfig(), tokenizer=PROCESSOR).save_pretrained(FOLDER)
OPTIONS = {"vision_reward_model": {"path": str(FOLDER), "device": "cpu"}}
SEES = "vision_scorer"
"""The laws of architectures build language models without images, which this one refuses; test_vision_scorer.py has its
own."""
LAWS = [law for law in conformance("rlcore-vision", options=OPTIONS) if SEES not in str(getattr(law, "id", law))]


@pytest.mark.parametrize("law", LAWS)
def test_law(law: Case) -> None:
    law()
