"""Fixtures that tests of packages share: forked and fresh processes, a browser, and a server that never answers."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "warm"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "rig"))

from browser import browser  # noqa: F401
from fresh_python import python  # noqa: F401
from no_hub import unreachable_hub  # noqa: F401
from warm_fixtures import (  # noqa: F401
    _laws_that_fork,
    pytest_collection,
    pytest_collection_modifyitems,
    warm_python,
)


@pytest.fixture(autouse=True)
def _signals_that_arrive() -> Iterator[None]:
    """Signals reach tests and the processes that they start, even if this process inherited that they are ignored."""
    from rlcore_testing.rig.isolate import default_signals

    with default_signals():
        yield


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Yield the address of a server on this machine that accepts connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:  # the system accepts what the backlog holds
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
