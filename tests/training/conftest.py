"""Puts this folder on the path: processes of their own import the tests that start them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
