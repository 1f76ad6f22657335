"""What a launcher does with the places of its ranks at the end, without Ray."""

from __future__ import annotations

import socket

import pytest

from rlcore_ray import cluster, launch


@pytest.mark.parametrize("is_there", [True, False])
def test_places_are_given_back_unless_the_cluster_has_ended(monkeypatch: pytest.MonkeyPatch, *, is_there: bool) -> None:
    """Ray's call waits a minute for a cluster that has ended, and then ends the process."""
    released: list[str] = []
    monkeypatch.setattr(launch, "remove_placement_group", released.append)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(cluster, "cluster_address", lambda: address)
        if not is_there:
            server.close()
        launch._release("places")
    assert released == (["places"] if is_there else [])
