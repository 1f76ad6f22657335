"""A model of the hub that cannot be fetched is said to be so at once."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlcore.errors import ModelError
from rlcore.planning.estimate import estimate
from rlcore.planning.reach import why_out_of_reach


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Have the hub be at an address of this machine at which nobody answers; returns the address."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("rlcore.planning.subject.declared", lambda *_: pytest.fail("the hub is asked again"))
    return address


def test_a_hub_that_cannot_be_reached_is_asked_once(nobody: str, caplog: pytest.LogCaptureFixture) -> None:
    values = {"model": {"path": "nobody/nothing"}, "trainer": {"name": "sft"}, "data": {"samples": ["a"]}}
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="refused") as refused:
        estimate(values, "test")
    assert "model = 'nobody/nothing': its configuration cannot be read" in str(refused.value)
    assert "the hub cannot be reached" in str(refused.value)
    assert "Retrying" not in caplog.text


@pytest.mark.usefixtures("nobody")
def test_what_needs_no_hub_is_within_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert why_out_of_reach("here", "main") == ""
    assert why_out_of_reach("./absent/folder", "main") == ""
    fetched = tmp_path / "models--some--model"
    (fetched / "snapshots/123").mkdir(parents=True)
    (fetched / "snapshots/123/config.json").write_text("{}")
    (fetched / "refs").mkdir()
    (fetched / "refs/main").write_text("123")
    assert why_out_of_reach("some/other", "main") != ""
    with monkeypatch.context() as unasked:
        unasked.setattr("rlcore.planning.reach.snapshot_download", lambda *_, **__: pytest.fail("the hub is asked"))
        assert why_out_of_reach("some/model", "main") == ""
