"""Fixtures of tests/ that tests of packages share: processes that are forked, and a browser."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "warm"))

from browser import browser  # noqa: F401
from warm_fixtures import _laws_that_fork, warm_python  # noqa: F401
