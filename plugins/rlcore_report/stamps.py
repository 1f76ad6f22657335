"""Texts that change when the files of a run change, so that a page is made anew only then."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path

from rlcore.checkpoints.claim import is_locked
from rlcore.checkpoints.run_folder import RunDir

SOME_TIME_S = 300
"""Seconds after which the page of a run that writes nothing is made anew, since that it is silent is shown too."""


def list_stamp(folder: Path) -> tuple[str, float]:
    """Return a text that changes when the files change that the list reads, and the time of the run's last step."""
    path, found, changed = str(folder), [], 0.0
    for name in ("config.yaml", "metrics.jsonl", "rollouts.jsonl", "end.json"):
        try:
            status = os.stat(f"{path}/{name}")  # noqa: PTH116  a third of the time of pathlib, for a thousand runs
        except OSError:
            continue
        found.append(f"{name[0]}{status.st_size}.{status.st_mtime_ns}")
        changed = changed if name[0] == "r" else max(changed, status.st_mtime)
    return "".join(found), changed


def page_stamp(folder: Path) -> str:
    """Return a text that changes when anything changes that the page of a run shows."""
    run = RunDir(folder)
    files = [run.completions, run.report, run.model, *(folder / "report", folder / "images", run.checkpoints)]
    for place in files[-3:]:
        with suppress(OSError):
            files += sorted(place.iterdir())
    files += [checkpoint / "manifest.json" for checkpoint in run.checkpoints.glob("[0-9]*")]
    stamp, changed = list_stamp(folder)
    quiet = int((time.time() - changed) / SOME_TIME_S)
    found = [stamp, f"running {quiet}" if is_locked(folder) else ""]
    for file in files:
        with suppress(OSError):
            status = file.stat()
            found.append(f"{file.name}{status.st_size}.{status.st_mtime_ns}")
    return hashlib.sha256(".".join(found).encode(errors="surrogateescape")).hexdigest()[:24]
