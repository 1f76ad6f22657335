from __future__ import annotations

from typing import Any

import pytest

from rlcore.testing import Case, conformance

OPTIONS: dict[str, dict[str, Any]] = {
    "ddpo": {
        "rollouts": 8, "batch_size": 4, "steps": 3, "guidance": 2.0, "clip_range": 0.05, "optimizer": {"lr": 3e-3},
    }
}  # fmt: skip


@pytest.mark.parametrize("law", conformance("rlcore-ddpo", options=OPTIONS))
def test_law(law: Case) -> None:
    law()
