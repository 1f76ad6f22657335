from __future__ import annotations

import atexit

import pytest
from judge_server import JudgeServer

from rlcore_testing import Case, conformance

SERVER = JudgeServer()
atexit.register(SERVER.close)
OPTIONS = {
    "regex": {"pattern": "[a-z]+"},
    "length": {"cap": 3, "slack": 4},
    "language": {"language": "en", "among": ["en", "de"]},
    "code_tests": {"isolation": "none"},  # which starts tests faster; test_code_tests.py is about the namespaces
    "judge": {"url": SERVER.url, "model": "any", "rubric": "Rate <{output}>", "max_failed": 1.0},
}


@pytest.mark.parametrize("law", conformance("rlcore-rewards:rewards", options=OPTIONS))
def test_law(law: Case) -> None:
    law()
