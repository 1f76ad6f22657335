from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance


@pytest.mark.parametrize(
    "law",
    conformance("rlcore-rft", options={"rft": {"generations": 8, "improve_steps": 3, "history": 2, "batch_size": 5}}),
)
def test_law(law: Case) -> None:
    law()
