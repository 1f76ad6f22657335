from __future__ import annotations

import pytest

from rlcore_engines.asynchronous.threads import ThreadedSampler
from rlcore_testing import Case, conformance
from rlcore_testing.rig.sampler_calls import check_submissions
from rlcore_transformers.sampling.sampler import DefaultSampler


@pytest.mark.parametrize("law", conformance("rlcore-engines:asynchronous", config={"run": {"asynchronous": 1}}))
def test_law(law: Case) -> None:
    law()


def test_rounds_of_a_thread_are_those_of_a_call() -> None:
    sampler = ThreadedSampler(DefaultSampler())
    try:
        check_submissions(sampler)
    finally:
        sampler.close()
