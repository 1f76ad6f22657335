from __future__ import annotations

from typing import Any

import pytest
from ray_stand_in import StandInRay

from rlcore_engines.asynchronous.threads import ThreadedSampler
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.ray_sampler import RaySampler
from rlcore_testing import Case, Remote, conformance
from rlcore_testing.rig.sampler_calls import check_submissions


def disturb(fault: str, _sampler: Any) -> None:
    CURRENT[0].faults.append(fault)


CURRENT: list[StandInRay] = []
CASES = conformance(
    "rlcore-engines:ray",
    options={"sampler:ray": {"num_actors": 3}},
    remotes={"ray": Remote(disturb=disturb, faults=("dies", "late"))},
)


@pytest.mark.parametrize("law", CASES)
def test_law(law: Case, no_ray: StandInRay) -> None:
    """Actors are objects of this process: what they compute, and what is sent to them, is the same."""
    CURRENT[:] = [no_ray]
    law()


def test_rounds_that_are_sampled_ahead_are_those_of_a_call(no_ray: StandInRay) -> None:
    """As in a run with `run.asynchronous`, whose thread calls the sampler."""
    sampler = RaySampler(RayConfig(num_actors=2))
    ahead = ThreadedSampler(sampler)
    try:
        check_submissions(ahead)
    finally:
        ahead.close()
        sampler.close()
