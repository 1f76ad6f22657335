from __future__ import annotations

import pytest
from vllm_stand_in import StandIn

from rlcore_testing import Case, conformance
from rlcore_testing.rig import sampler_calls

SERVER = StandIn()
"""A server for all laws, since the options of a component are given when the tests are collected."""


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies are compared over a thousandth of a run's requests: each goes through HTTP."""
    monkeypatch.setattr(sampler_calls, "DRAWS", 600)


@pytest.mark.parametrize("law", conformance("rlcore-vllm", options={"vllm": {"url": SERVER.url}}))
def test_law(law: Case) -> None:
    law()
