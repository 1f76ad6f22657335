"""Run the suite: `python -m rlcore_bench.suite --help`."""

from __future__ import annotations

import sys

from rlcore_bench.suite.sitting import main

sys.exit(main())
