"""Let the laws of the conformance kit fork their processes, as in tests/."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "warm"))

from warm_fixtures import _laws_that_fork, warm_python  # noqa: F401
