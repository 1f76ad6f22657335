"""Registration of the store on disk; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_rollout_stores(register: Register) -> None:
    """Register the store `disk`."""
    register(
        "disk",
        "rlcore_transformers.disk_store.store:DiskStore",
        config="rlcore_transformers.disk_store.config:DiskStoreConfig",
        summary="rollouts in Arrow files, memory-mapped when they are taken",
    )
