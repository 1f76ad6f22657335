from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance


@pytest.mark.parametrize("law", conformance("rlcore-transformers:disk-store"))
def test_law(law: Case) -> None:
    law()
