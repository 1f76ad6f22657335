"""The places of ranks on a cluster: the wait for room, and the end, without Ray."""

from __future__ import annotations

import socket
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from rlcore_engines.ray import cluster
from rlcore_engines.ray import launch as places
from rlcore_engines.ray.cluster import RayError
from rlcore_engines.ray.launch_command import Launch, Presses


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list of the places that were given back to a cluster of four processors, of which one is free."""
    found: list[Any] = []
    resources = {"cluster_resources": lambda: {"CPU": 4.0}, "available_resources": lambda: {"CPU": 1.0}}
    monkeypatch.setattr(places, "ray", SimpleNamespace(**resources))
    monkeypatch.setattr(places, "placement_group", lambda *_, **__: SimpleNamespace(ready=lambda: "ready"))
    monkeypatch.setattr(places, "remove_placement_group", found.append)
    return found


@pytest.mark.parametrize(("limit_s", "waits"), [(600.0, [10.0, 590.0]), (0.0, [0.0])])
def test_a_command_reports_that_it_waits_for_room(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], released: list[Any], limit_s: float,
    waits: list[float],
) -> None:  # fmt: skip
    now, waited = [0.0], list[float]()

    def answers(_references: Any, timeout_s: float, _presses: Presses) -> None:
        waited.append(timeout_s)
        now[0] += timeout_s
        raise GetTimeoutError

    monkeypatch.setattr(places, "answers", answers)
    monkeypatch.setattr(places, "time", SimpleNamespace(monotonic=lambda: now[0]))
    expected = (
        rf"no room for 2 processes with CPU 2 each within --start-timeout {limit_s:g} seconds; free are CPU 1 of 4:"
    )
    with pytest.raises(RayError, match=expected):
        places.reserve(Launch(words=(), processes=2, cpus=2.0, start_timeout_s=limit_s), Presses())
    assert waited == waits
    note = "rlcore ray: waiting for room for 2 processes with CPU 2 each; free are CPU 1 of 4\n"
    assert capsys.readouterr().err == (note if limit_s else "")
    assert len(released) == 1


@pytest.mark.parametrize("is_there", [True, False])
def test_places_are_given_back_unless_the_cluster_has_ended(
    monkeypatch: pytest.MonkeyPatch, released: list[Any], *, is_there: bool
) -> None:
    """Ray's call waits a minute for a cluster that has ended, and then ends the process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(cluster, "cluster_address", lambda: address)
        if not is_there:
            server.close()
        places.release("places")
    assert released == (["places"] if is_there else [])
