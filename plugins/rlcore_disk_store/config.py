"""The options of the store on disk; light, so that `rlcore show disk` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option


@config
class DiskStoreConfig:
    """Rollouts on disk."""

    path: str | None = option(
        None, "folder in which every process makes one of its own; the system's for temporary files when left out"
    )
    keep: int = option(
        0, "taken rounds left on disk to be looked at, the newest; they outlive the run, so `path` must be given", ge=0
    )
