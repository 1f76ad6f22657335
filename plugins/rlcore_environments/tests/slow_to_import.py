"""An environment that takes longer to import than a call may take."""

from __future__ import annotations

import time

from isolated_games import Dice

time.sleep(3.0)


class SlowToImport(Dice):
    """It answers at once."""
