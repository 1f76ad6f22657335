"""The figures that pages give of how the program decides are those that it decides by."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcore.models.decoding import block_cache, packed
from rlcore.models.settings import CausalLMConfig
from rlcore.sampling import loop
from rlcore_profile import recorder

DOCS = Path(__file__).resolve().parents[2] / "docs"
SAID = {
    "performance.md": [
        f"| `model.trunk_cache_gb` | {CausalLMConfig().trunk_cache_gb:g} GB |",
        f"{packed.MIN_ROWS} sequences or more, and {packed.MIN_JOINED_ROWS} or more if at least",
        f"as soon as one in {loop.LEAVE_SHARE} has",
        f"blocks of {block_cache.WIDTH} columns",
        f"have {packed.MAX_SHORT} tokens at most",
        f"a prompt of {packed.MIN_SHARED_PROMPT} tokens or more",
        f"read back only after every {loop.READ_EVERY['cuda']} tokens",
        f"as soon as one in {loop.JOIN_SHARE} is free",
    ],
    "gpus.md": [
        f"read back after every {loop.READ_EVERY['cuda']} tokens",
    ],
    "profiling.md": [f"in the first {recorder.TRACED} steps"],
}


@pytest.mark.parametrize(("page", "said"), [(page, said) for page, each in SAID.items() for said in each])
def test_a_page_says_the_figure_that_counts(page: str, said: str) -> None:
    assert said in " ".join((DOCS / page).read_text(encoding="utf-8").split())
