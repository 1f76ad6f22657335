"""Run the command line as `python -m rlcore`."""

from __future__ import annotations

import sys

from rlcore.cli import main

sys.exit(main())
