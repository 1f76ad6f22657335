"""The options of the store on disk; light, so that `rlcore show disk` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option


@config
class DiskStoreConfig:
    """Options of the rollout store on disk."""

    path: str | None = option(
        None, "folder in which each process creates a subfolder; if omitted, the system's temporary folder"
    )
    keep: int = option(
        0,
        "number of newest rounds kept on disk for inspection after they are taken and after the run; needs `path`",
        ge=0,
    )
