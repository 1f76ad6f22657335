"""Keep what all share as it was while a stranger's module is imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path


@contextmanager
def guarded() -> Iterator[None]:
    """Put back what a plugin took from `sys.path`, the working folder, and stdout, which `--json` needs for itself.

    What it added to `sys.path` stays, for its own imports may need it.
    """
    path, folder = list(sys.path), Path.cwd()
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if any(entry not in sys.path for entry in path):
            sys.path[:] = [*(entry for entry in sys.path if entry not in path), *path]
        if not folder.samefile(os.curdir):
            os.chdir(folder)
