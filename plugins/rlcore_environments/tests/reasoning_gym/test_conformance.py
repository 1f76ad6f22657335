from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance


@pytest.mark.parametrize(
    "law", conformance("rlcore-environments:reasoning-gym", options={"reasoning_gym": {"families": "gcd"}})
)
def test_law(law: Case) -> None:
    law()
