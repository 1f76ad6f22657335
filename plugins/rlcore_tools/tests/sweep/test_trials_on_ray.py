"""Trials on a cluster: what they are given, and the Ray that a sweep starts if there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from sweep_fakes import make_sweep, run_sweep

from rlcore.config import load_yaml
from rlcore.errors import ConfigError
from rlcore_engines.ray import cluster
from rlcore_tools.sweep.ray import cluster_of


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of what was asked of Ray, which is not started."""
    found: list[Any] = []
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "connect", lambda address, cpus: found.append((address, cpus)) or True)
    monkeypatch.setattr(cluster, "cluster_address", lambda: "here:1")
    monkeypatch.setattr(cluster, "disconnect", lambda *, started: found.append(started))
    return found


def test_a_sweep_without_a_cluster_starts_one_with_room_for_its_trials_and_ends_it(
    calls: list[Any], tmp_path: Path
) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]", "run.processes=3", on="ray", parallel=2, trials=1)
    assert run_sweep(sweep) == 0
    assert calls == [(None, 6.0), True]
    assert load_yaml(sweep.folder / "trials/00000.yaml")["run"]["cluster"] == "ray"
    assert "cluster" not in load_yaml(sweep.folder / "best.yaml")["run"]  # where a trial ran is no option of the best


def test_a_cluster_that_is_named_is_used(calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = {"name": "ray", "address": "head:2", "cpus": 2}
    sweep = make_sweep(tmp_path, "trainer.x=[1]", base={"run": {"cluster": named}}, on="ray")
    with cluster_of(sweep) as variables:
        assert variables == {}
    monkeypatch.setenv("RAY_ADDRESS", "head:3")
    with cluster_of(make_sweep(tmp_path, "trainer.x=[1]", on="ray")) as variables:
        assert variables == {}
    with cluster_of(make_sweep(tmp_path, "trainer.x=[1]")) as variables:
        assert variables == {}
    assert not calls


def test_a_sweep_on_ray_without_the_package_for_it_is_an_error(
    calls: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rlcore_engines.ray.cluster", None)
    sweep = make_sweep(tmp_path, "trainer.x=[1]", on="ray")
    with pytest.raises(ConfigError, match=r"pip install 'rlcore-tools\[ray\]'"), cluster_of(sweep):
        pass
    assert not calls
