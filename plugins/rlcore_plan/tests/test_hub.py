"""Tests that a plan contacts an unreachable hub only once and reports it."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import pytest
from huggingface_hub import constants

from rlcore.errors import ModelError
from rlcore_plan.estimate import estimate

NAME = "nobody/nothing"


def test_a_hub_that_cannot_be_reached_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    refused = lambda *_, **__: pytest.fail("the hub is asked by one who does not give up")  # noqa: E731
    for library in ("kind.AutoConfig", "tokenizers.AutoTokenizer"):
        monkeypatch.setattr(f"rlcore_transformers.models.{library}.from_pretrained", refused)
    monkeypatch.chdir(tmp_path)
    values = {"model": {"path": NAME}, "trainer": {"name": "sft"}, "data": {"samples": ["a"]}}
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="refused") as refused_by:
        estimate(values, "test")
    assert f"model = {NAME!r}: cannot be loaded" in str(refused_by.value)
    assert "the hub cannot be reached" in str(refused_by.value)
    assert "Retrying" not in caplog.text
