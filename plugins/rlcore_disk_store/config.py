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
        0,
        "newest rounds that stay on disk for inspection after they are taken, and after the run; needs `path`",
        ge=0,
    )
