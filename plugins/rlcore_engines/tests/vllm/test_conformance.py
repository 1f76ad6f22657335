from __future__ import annotations

import pytest
from openai_stand_in import EXTRA, OpenAIStandIn
from vllm_stand_in import StandIn

from rlcore_testing import Case, Remote, conformance
from rlcore_testing.rig import sampler_calls

SERVER = StandIn()
"""A server for all laws, since the options of a component are given when the tests are collected."""
OTHER = OpenAIStandIn()
OTHER.fields |= EXTRA
OTHER.states_reason = True
OPTIONS = {
    "vllm": {"url": SERVER.url},
    "openai": {
        "url": OTHER.url, "model": "m", "extra": ("top_k", "min_tokens", "stop_token_ids", "return_token_ids"),
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frequencies are compared over a thousandth of a run's requests: each goes through HTTP."""
    monkeypatch.setattr(sampler_calls, "DRAWS", 600)


REMOTE = Remote(
    disturb=lambda fault, _: SERVER.faults.append(fault), faults=("dies", "late"), draws_by_seeds=False
)  # fmt: skip
CASES = conformance(
    "rlcore-engines:vllm", options=OPTIONS, remotes={"vllm": REMOTE},
    expected_failures={"sampler-openai-it_follows_the_weights": "the server's model is not the policy"},
)  # fmt: skip


@pytest.mark.slow  # thousands of requests to a server
@pytest.mark.parametrize("law", CASES)
def test_law(law: Case) -> None:
    law()
