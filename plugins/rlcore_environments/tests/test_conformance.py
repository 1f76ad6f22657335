from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance


@pytest.mark.parametrize(
    "law", conformance("rlcore-environments:environments", options={"tools": {"functions": ["test_tools:add"]}})
)
def test_law(law: Case) -> None:
    law()
