"""`run.cluster`: what it starts, and what is refused before anything starts."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcore.cli import INTERRUPTED, main
from rlcore_engines.ray import cluster, launch
from rlcore_engines.ray.launch_command import Launch

CONFIG = "trainer: {name: sft}\nmodel: {path: nowhere}\ndata: {samples: [ab]}\n"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """Return a list of what would be started."""
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(CONFIG)
    found: list[Launch] = []
    monkeypatch.setattr(launch, "start", lambda asked: found.append(asked) or 3)
    return found


def test_a_cluster_starts_the_command_that_was_given_with_its_options(started: list[Launch]) -> None:
    words = ["train", "run.yaml", "run.processes=4", "run.cluster={name: ray, address: 'head:1', gpus: 2, env: [A]}"]
    assert main(words) == 3
    assert main(["train", "run.yaml", "run.cluster=ray"]) == 3
    first, second = started
    assert first == Launch(words=words, processes=4, address="head:1", gpus=2.0, env=("A",))
    assert second == Launch(words=["train", "run.yaml", "run.cluster=ray"], processes=1)


def test_world_size_1_in_the_environment_does_not_keep_a_run_from_the_cluster(
    started: list[Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some containers set it; a rank that a cluster has started, also a single one, does not start others."""
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert main(["train", "run.yaml", "run.processes=2", "run.cluster=ray"]) == 3
    assert [each.processes for each in started] == [2]
    monkeypatch.setenv("RLCORE_STARTED", "1")
    assert main(["train", "run.yaml", "run.cluster=ray"]) == 1  # it trains here, and there is no model
    assert len(started) == 1


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        ("{name: ray, adress: x}", "run.cluster.adress: no such option; did you mean 'address'?"),
        ("{name: ray, cpus: -1}", "run.cluster.cpus = -1: must lie in [0, 1024]"),
        ("slurm", "run.cluster = 'slurm': no plugin has a service for it"),
        ("{address: x}", "run.cluster = {'address': 'x'}: no plugin has a service for it"),
    ],
)
def test_a_cluster_that_is_unknown_or_has_wrong_options_is_an_error(
    started: list[Any], capsys: pytest.CaptureFixture[str], cluster: str, error: str
) -> None:
    assert main(["train", "run.yaml", f"run.cluster={cluster}"]) == 1
    assert error in capsys.readouterr().err
    assert not started


def test_sigterm_while_ray_starts_ends_the_command_as_ctrl_c_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray replaces the handler of SIGTERM meanwhile by one that exits with the number of the signal."""
    monkeypatch.setattr(cluster.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(cluster.ray, "init", lambda *_, **__: sys.exit(signal.SIGTERM))
    assert main(["ray", "--processes", "1", "doctor"]) == INTERRUPTED
    assert capsys.readouterr().err == "rlcore: interrupted\n"
