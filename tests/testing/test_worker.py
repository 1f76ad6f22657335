"""One spawned process serves the law on spawned workers in the tests of all packages."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from laws_held import law_called

from rlcore.plugins.registry import all_registries
from rlcore_testing import Subject
from rlcore_testing.laws import dist
from rlcore_testing.rig import probes, worker

LAW = law_called(dist, "a_spawned_worker_has_the_same_components")
DISTS = ("rlcore-sft", "rlcore-ppo", "rlcore-ilql")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Answer for new processes from this one; return the list of the functions that were called in one."""
    calls: list[str] = []

    def call(function: str, arguments: Any, *, what: str) -> Any:
        calls.append(function.partition(":")[2])
        return digests() if calls[-1] == "unpickled" else getattr(probes, calls[-1])(**arguments)

    for module in (worker, dist):
        monkeypatch.setattr(module, "call_in_new_process", call)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(worker.XDIST_RUN, raising=False)
    worker._found.cache_clear()
    return calls


def digests() -> dict[str, str]:
    components = [each for each in all_registries().discovery.components if each.dist in DISTS]
    return {f"{each.dist}:{each.kind}:{each.name}": probes.digest(probes.pickled(each)) for each in components}


def hold() -> None:
    for name in DISTS:
        LAW(Subject(name, tuple(plugin for plugin in all_registries().discovery.plugins if plugin.dist == name)))


@pytest.mark.slow
def test_pickles_are_the_same_in_a_new_process() -> None:
    assert digests().items() <= worker.worker().items()


def test_one_spawned_worker_serves_all_packages(started: list[str]) -> None:
    hold()
    assert started == ["unpickled"]


def test_processes_of_one_run_of_xdist_share_a_worker(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(worker.XDIST_RUN, "0123456789abcdef")
    for _ in range(2):
        worker._found.cache_clear()  # as in another process of the run
        hold()
    assert started == ["unpickled"]
    monkeypatch.setenv(worker.XDIST_RUN, "fedcba9876543210")
    hold()
    assert started == ["unpickled", "unpickled"]


def test_a_package_that_differs_in_the_worker_gets_a_process_of_its_own(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = digests() | {"rlcore-ppo:trainers:ppo": "another"}
    monkeypatch.setitem(globals(), "digests", lambda: found)
    hold()
    assert started == ["unpickled", "unpack"]
