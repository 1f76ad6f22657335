"""The rendezvous of a run's processes, apart for each attempt of a launcher that restarts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # public all the same
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

SCHEME = "rlcore"
METHOD = f"{SCHEME}://"
"""`init_method` of the process group."""


def _meet(_url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
    """Yield store, rank and world size as `env://` does, with keys of this attempt.

    torchrun's store outlives a restart, and the addresses of processes that have ended are still in it.
    """
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    for store, rank, world in rendezvous("env://", **options):
        yield PrefixStore(f"rlcore/attempt/{attempt}", store), rank, world


register_rendezvous_handler(SCHEME, _meet)
