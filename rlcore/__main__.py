"""Run the command line as `python -m rlcore`."""

from __future__ import annotations

import os
import sys

if not sys.flags.safe_path:
    # Python puts the working folder here, whose modules would be imported first; for the script `rlcore`, its folder.
    sys.path[0] = os.path.dirname(sys.executable)  # noqa: PTH120  pathlib could be such a module

from rlcore.cli import main

sys.exit(main())
