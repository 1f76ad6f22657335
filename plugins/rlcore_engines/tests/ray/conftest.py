"""A Ray on this machine for the tests that need one, and a stand-in for the others."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # it would write a file into the home folder
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # beside other tests, Ray's 15 makes a minute of ten seconds

from ray_stand_in import StandInRay, stand_in


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> StandInRay:
    return stand_in(monkeypatch)


@pytest.fixture(scope="session")
def ray_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Ray once in a session, with two processors and little memory, and yield its address."""
    import ray

    from rlcore_engines.ray import cluster

    ray.init(
        "local", num_cpus=2, object_store_memory=80_000_000, include_dashboard=False, log_to_driver=False,
        logging_level="error", namespace=cluster.NAMESPACE,
    )  # fmt: skip
    yield cluster.cluster_address()
    ray.shutdown()
