"""Run the suite: `python -m benchmarks --help`."""

from __future__ import annotations

import sys

from benchmarks.sitting import main

sys.exit(main())
