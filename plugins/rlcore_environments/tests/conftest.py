"""Make `env_games` importable for the tests of this folder, and let tests see the episodes that are sampled."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

from rlcore.types import Episodes

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[Episodes]:
    """Return a list to which every batch of episodes is added."""
    from rlcore_environments.sampler import EpisodeSampler

    found: list[Episodes] = []
    call = EpisodeSampler.__call__

    def noting(self: Any, *args: Any, **named: Any) -> Episodes:
        found.append(call(self, *args, **named))
        return found[-1]

    monkeypatch.setattr(EpisodeSampler, "__call__", noting)
    return found
