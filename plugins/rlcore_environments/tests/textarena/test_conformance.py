from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance


@pytest.mark.parametrize(
    "law", conformance("rlcore-environments:textarena", options={"textarena": {"id": "GuessTheNumber-v0"}})
)
def test_law(law: Case) -> None:
    law()
