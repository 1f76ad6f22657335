from __future__ import annotations

import pytest

from rlcore.testing import Case, conformance

SMALL = {"rollouts": 8, "num_generations": 2, "optimizer": {"lr": 1e-2}}


@pytest.mark.parametrize("law", conformance("rlcore-grpo", options={"grpo": SMALL}))
def test_law(law: Case) -> None:
    law()
