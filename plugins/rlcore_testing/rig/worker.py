"""One spawned process for the tests of all packages in a run of pytest."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import os
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from rlcore_testing.law import LawBroken
from rlcore_testing.rig.isolate import call_in_new_process

XDIST_RUN = "PYTEST_XDIST_TESTRUNUID"
"""Environment variable that all processes of one run of pytest-xdist have in common."""


def worker() -> dict[str, str]:
    """Return what `rlcore_testing.rig.probes:unpickled` finds in a new process; empty if a component ends that process.

    The process is started once for the same `sys.path` and switches, also by several processes of pytest-xdist.
    """
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("RLCORE_"))
    return _found(os.environ.get(XDIST_RUN, ""), "\n".join([*sys.path, *switches]))


@functools.cache
def _found(run: str, surroundings: str) -> dict[str, str]:
    if not run:
        return _spawned()
    name = hashlib.sha256(f"{run} {surroundings}".encode()).hexdigest()[:32]
    file, lock = (Path(tempfile.gettempdir()) / f"rlcore-worker-{name}.{kind}" for kind in ("json", "lock"))
    for each in (file, lock):
        atexit.register(functools.partial(each.unlink, missing_ok=True))
    with FileLock(lock):
        if not file.exists():
            file.write_text(json.dumps(_spawned()), encoding="utf-8")
        found: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return found


def _spawned() -> dict[str, str]:
    found: dict[str, str] = {}
    with contextlib.suppress(LawBroken):
        found = call_in_new_process("rlcore_testing.rig.probes:unpickled", {}, what="a spawned worker")
    return found
