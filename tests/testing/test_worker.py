"""One spawned process serves the laws on what packages register and unpickle there, in the tests of all of them."""

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

HELD = [
    law_called(dist, name) for name in ("registering_again_gives_the_same", "a_spawned_worker_has_the_same_components")
]
DISTS = ("rlcore-sft", "rlcore-ppo", "rlcore-ilql")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Answer for new processes from this one; return the list of the functions that were called in one."""
    calls: list[str] = []

    def call(function: str, arguments: Any, *, what: str) -> Any:
        calls.append(function.partition(":")[2])
        return seen() if calls[-1] == "seen_by_a_worker" else getattr(probes, calls[-1])(**arguments)

    for module in (worker, dist):
        monkeypatch.setattr(module, "call_in_new_process", call)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv(worker.XDIST_RUN, raising=False)
    worker._found.cache_clear()
    return calls


def digests() -> dict[str, str]:
    components = [each for each in all_registries().discovery.components if each.dist in DISTS]
    return {f"{each.dist}:{each.kind}:{each.name}": probes.digest(probes.pickled(each)) for each in components}


def seen() -> dict[str, Any]:
    return {"pickles": digests(), "registered": {name: probes.registered(name) for name in DISTS}}


def hold() -> None:
    for name in DISTS:
        plugins = tuple(plugin for plugin in all_registries().discovery.plugins if plugin.dist == name)
        for law in HELD:
            law(Subject(name, plugins))


@pytest.mark.slow
def test_pickles_are_the_same_in_a_new_process() -> None:
    found = worker.worker()
    assert digests().items() <= found.pickles.items()
    assert {name: probes.registered(name) for name in DISTS}.items() <= found.registered.items()


@pytest.mark.slow
def test_one_spawned_worker_serves_all_packages(started: list[str]) -> None:
    hold()
    assert started == ["seen_by_a_worker"]


@pytest.mark.slow
def test_processes_of_one_run_of_xdist_share_a_worker(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(worker.XDIST_RUN, "0123456789abcdef")
    for _ in range(2):
        worker._found.cache_clear()  # as in another process of the run
        hold()
    assert started == ["seen_by_a_worker"]
    monkeypatch.setenv(worker.XDIST_RUN, "fedcba9876543210")
    hold()
    assert started == ["seen_by_a_worker", "seen_by_a_worker"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("differs", "called"),
    [
        ({"pickles": {"rlcore-ppo:trainers:ppo": "another"}}, "unpack"),
        ({"registered": {"rlcore-ppo": []}}, "registered"),
    ],
)
def test_a_package_that_differs_in_the_worker_gets_a_process_of_its_own(
    differs: dict[str, Any], called: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {what: of | differs.get(what, {}) for what, of in seen().items()}
    monkeypatch.setitem(globals(), "seen", lambda: found)
    hold()
    assert started == ["seen_by_a_worker", called]
