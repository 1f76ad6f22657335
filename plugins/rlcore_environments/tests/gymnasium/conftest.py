"""Make `gym_games` importable for the tests of this folder, and by name in configurations."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
