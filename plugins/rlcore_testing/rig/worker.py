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

import attrs
from filelock import FileLock

from rlcore_testing.law import LawBroken
from rlcore_testing.rig.isolate import call_in_new_process

XDIST_RUN = "PYTEST_XDIST_TESTRUNUID"
"""Environment variable that all processes of one run of pytest-xdist have in common."""


@attrs.frozen
class Spawned:
    """What a new process found.

    Attributes:
        pickles: digests of pickles, which `rlcore_testing.rig.probes:unpickled` returns.
        registered: what `rlcore_testing.rig.probes:registered` returns of each dist.
    """

    pickles: dict[str, str] = attrs.field(factory=dict)
    registered: dict[str, list[list[str]]] = attrs.field(factory=dict)


def worker() -> Spawned:
    """Return what a new process registers and unpickles; nothing if a component ends that process.

    The process is started once for the same `sys.path` and switches, also by several processes of pytest-xdist.
    """
    switches = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith("RLCORE_"))
    return _found(os.environ.get(XDIST_RUN, ""), "\n".join([*sys.path, *switches]))


@functools.cache
def _found(run: str, surroundings: str) -> Spawned:
    if not run:
        return _spawned()
    name = hashlib.sha256(f"{run} {surroundings}".encode()).hexdigest()[:32]
    file, lock = (Path(tempfile.gettempdir()) / f"rlcore-worker-{name}.{kind}" for kind in ("json", "lock"))
    for each in (file, lock):
        atexit.register(functools.partial(each.unlink, missing_ok=True))
    with FileLock(lock):
        if not file.exists():
            file.write_text(json.dumps(attrs.asdict(_spawned())), encoding="utf-8")
        return Spawned(**json.loads(file.read_text(encoding="utf-8")))


def _spawned() -> Spawned:
    with contextlib.suppress(LawBroken):
        return Spawned(**call_in_new_process("rlcore_testing.rig.probes:seen_by_a_worker", {}, what="a spawned worker"))
    return Spawned()
