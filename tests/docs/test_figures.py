"""Tests that thresholds quoted in the documentation equal those in the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore_report.profile import recorder
from rlcore_transformers.cpu import packed_decoder
from rlcore_transformers.cpu import packed_decoder as block_cache
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.sampling import sampler

DOCS = Path(__file__).resolve().parents[2] / "docs"
SAID = {
    "performance.md": [
        f"| `model.trunk_cache_gb` | {CausalLMConfig().trunk_cache_gb:g} GB |",
        f"{packed_decoder.MIN_ROWS} sequences or more, and {packed_decoder.MIN_JOINED_ROWS} or more if at least",
        f"as soon as one in {sampler.LEAVE_SHARE} has",
        f"blocks of {block_cache.WIDTH} columns",
        f"a prompt of {packed_decoder.MIN_SHARED_PROMPT} tokens or more",
        f"read back only after every {sampler.READ_EVERY['cuda']} tokens",
        f"as soon as one in {sampler.JOIN_SHARE} is free",
    ],
    "gpus.md": [
        f"read back after every {sampler.READ_EVERY['cuda']} tokens",
    ],
    "profiling.md": [f"in the first {recorder.TRACED} steps"],
}


@pytest.mark.parametrize(("page", "said"), [(page, said) for page, each in SAID.items() for said in each])
def test_each_figure_that_is_repeated_in_the_documentation_is_the_measured_one(page: str, said: str) -> None:
    assert said in " ".join((DOCS / page).read_text(encoding="utf-8").split())
