"""The core and the algorithms beside it keep every law of the kit, as a stranger's packages must."""

from __future__ import annotations

import pytest

from rlcore.testing import Case, conformance


@pytest.mark.parametrize("law", conformance("rlcore"))
def test_the_core_keeps_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize("law", conformance("rlcore-ppo", options={"ppo": {"rollouts": 8, "batch_size": 4}}))
def test_ppo_keeps_the_law(law: Case) -> None:
    law()


@pytest.mark.parametrize("law", conformance("rlcore-sft", options={"sft": {"batch_size": 4}}))
def test_sft_keeps_the_law(law: Case) -> None:
    law()
