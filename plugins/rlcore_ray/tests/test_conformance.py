from __future__ import annotations

from typing import Any

import pytest
from ray_stand_in import StandInRay

from rlcore_testing import Case, Remote, conformance


def disturb(fault: str, _sampler: Any) -> None:
    CURRENT[0].faults.append(fault)


CURRENT: list[StandInRay] = []
CASES = conformance(
    "rlcore-ray",
    options={"sampler:ray": {"num_actors": 3}},
    remotes={"ray": Remote(disturb=disturb, faults=("dies", "late"))},
)


@pytest.mark.parametrize("law", CASES)
def test_law(law: Case, no_ray: StandInRay) -> None:
    """Actors are objects of this process: what they compute, and what is sent to them, is the same."""
    CURRENT[:] = [no_ray]
    law()
