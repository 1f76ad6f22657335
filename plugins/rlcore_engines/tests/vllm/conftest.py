"""Servers that stand in for vLLM and for the API of OpenAI, and a real one; modules here are importable in tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import vllm_environment
from openai_stand_in import OpenAIStandIn
from vllm_stand_in import StandIn


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests of the real engine, which installs 3.5 GB, unless `-m` names them (`make test-engines`)."""
    if "engine" not in str(config.option.markexpr):
        engines = [item for item in items if item.get_closest_marker("engine")]
        items[:] = [item for item in items if item not in engines]
        config.hook.pytest_deselected(items=engines)


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


@pytest.fixture
def server() -> Iterator[OpenAIStandIn]:
    stand_in = OpenAIStandIn()
    yield stand_in
    stand_in.close()


@pytest.fixture(scope="session")
def engine() -> dict[str, Any]:
    """Return the options of a server of one thread on the CPU."""
    env = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    return {"python": vllm_environment.python(), "args": ("--enforce-eager",), "env": env, "tolerance": 1e-5}
