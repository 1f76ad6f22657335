from __future__ import annotations

import pytest

from rlcore.testing import Case, conformance


@pytest.mark.parametrize(
    "law", conformance("rlcore-rft", options={"rft": {"generations": 8, "improve_steps": 2, "history": 2}})
)
def test_law(law: Case) -> None:
    law()
