"""A stand-in for a vLLM server; `vllm_stand_in` is importable in the tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

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
