"""Tests that a plan contacts an unreachable hub only once and reports it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rlcore.errors import ModelError
from rlcore_tools.plan.estimate import estimate

NAME = "nobody/nothing"


@pytest.mark.usefixtures("unreachable_hub")
def test_a_hub_that_cannot_be_reached_is_asked_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    values = {"model": {"path": NAME}, "trainer": {"name": "sft"}, "data": {"samples": ["a"]}}
    with caplog.at_level(logging.WARNING), pytest.raises(ModelError, match="refused") as refused_by:
        estimate(values, "test")
    assert f"model = {NAME!r}: cannot be loaded" in str(refused_by.value)
    assert "the hub cannot be reached" in str(refused_by.value)
    assert "Retrying" not in caplog.text
