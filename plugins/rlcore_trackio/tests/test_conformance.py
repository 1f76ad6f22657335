from __future__ import annotations

import os
import tempfile

import pytest

# Trackio reads this once, when it is imported; without it, runs of the tests would be shown among the user's own.
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))

from rlcore_testing import Case, conformance


@pytest.mark.parametrize("law", conformance("rlcore-trackio"))
def test_law(law: Case) -> None:
    law()
