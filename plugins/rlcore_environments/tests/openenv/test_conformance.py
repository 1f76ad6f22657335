from __future__ import annotations

import pytest

from rlcore_testing import Case, conformance
from rlcore_testing.law import laws_in
from rlcore_testing.laws import environments

EPISODES = laws_in(environments)
"""Laws that play episodes, for which `test_server` starts a server."""
CASES = conformance("rlcore-environments:openenv", options={"openenv": {"url": "http://127.0.0.1:1"}})


@pytest.mark.parametrize("law", [case for case in CASES if case.values[0].law not in EPISODES])
def test_law(law: Case) -> None:
    law()
