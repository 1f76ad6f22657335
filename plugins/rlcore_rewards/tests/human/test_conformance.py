from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from rlcore_rewards.human.judgement import Item, Judgement, append_judgements
from rlcore_testing import Case, conformance
from rlcore_testing.laws.rewards import OUTPUTS

# Judgements that people have made before: the laws call the reward, and nobody is there to answer.
FOLDER = Path(tempfile.mkdtemp(prefix="rlcore-human-"))
ITEMS = [Item("score", f"prompt {i}: ", [text], None, (1, 5, 1)) for i in range(12) for text in {*OUTPUTS, "", "yes"}]
append_judgements(FOLDER, [
    Judgement(str(i), item, 1 + len(item.outputs[0]) % 5, "ann", "2026-01-02T03:04:05+00:00")
    for i, item in enumerate(ITEMS)
])  # fmt: skip


@pytest.mark.parametrize(
    "law", conformance("rlcore-rewards:human", options={"human": {"folder": str(FOLDER), "timeout_s": 1.0}})
)
def test_law(law: Case) -> None:
    law()
