"""Makes the modules beside the tests importable."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read metrics more often than every 0.2 s, because the trials of tests are short."""
    from rlcore_tools.sweep import sweep_loop

    monkeypatch.setattr(sweep_loop, "POLL_S", 0.02)
