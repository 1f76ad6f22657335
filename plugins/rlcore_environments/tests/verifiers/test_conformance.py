from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance
from rlcore_testing.law import laws_in
from rlcore_testing.laws import environments

EPISODES = laws_in(environments)
"""Laws that play episodes, which `test_library` checks in another Python."""
CASES = conformance("rlcore-environments:verifiers", options={"verifiers": {"taskset": "arithmetic_tasks"}})


@pytest.mark.parametrize("law", [case for case in CASES if case.values[0].law not in EPISODES])
def test_law(law: Case) -> None:
    law()
