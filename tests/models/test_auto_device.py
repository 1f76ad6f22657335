"""The device that `auto` selects for a reward model or a teacher."""

from __future__ import annotations

import pytest
import torch

from rlcore_transformers.models.loading import device_named


@pytest.mark.parametrize(("kind", "expected"), [("mps", "cpu"), ("cuda", "cuda:1"), (None, "cpu")])
def test_auto_is_the_accelerator_of_the_process_but_not_one_of_apple(
    kind: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACCELERATE_USE_CPU", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    found = None if kind is None else torch.device(kind)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: found)
    assert device_named("auto", "teacher.device") == torch.device(expected)
