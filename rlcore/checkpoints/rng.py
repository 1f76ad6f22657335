"""Seed every global random number generator of a process, and save and restore their states."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rlcore.errors import CheckpointError


def seed_everything(seed: int) -> None:
    """Seed the global random generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  the user's functions may use the global one
    torch.manual_seed(seed)


def seed_dropout(seed: int, rank: int) -> None:
    """Seed torch's global generator anew on ranks above 0, so that rows on different ranks have different dropout."""
    if rank:
        torch.manual_seed(seed * 1009 + rank)


def capture_rng(generators: Mapping[str, torch.Generator]) -> dict[str, Any]:
    """Return the state of Python's, numpy's and torch's global generators and of `generators`, for `save_state`."""
    return {
        "python": random.getstate(),
        "numpy": _plain(np.random.get_state(legacy=False)),  # noqa: NPY002 (other libraries may use the global generator)
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "generators": {name: generator.get_state() for name, generator in generators.items()},
    }


def restore_rng(state: Mapping[str, Any], generators: Mapping[str, torch.Generator], *, rank: int = 0) -> None:
    """Restore every generator from the state that `capture_rng` returned.

    If it has another number of CUDA devices, which processes on one machine share out, the state of the one that
    belonged to this process becomes that of the present one.

    Raises:
        CheckpointError: the state lacks one of `generators`.
    """
    missing = sorted(set(generators) - set(state["generators"]))
    if missing:
        raise CheckpointError(
            f"the checkpoint has no state of the random generator '{missing[0]}', only of "
            f"{', '.join(sorted(state['generators'])) or 'none'}: it was written by another version of this trainer"
        )
    version, internal, gauss_next = state["python"]
    random.setstate((version, tuple(internal), gauss_next))
    np.random.set_state(state["numpy"])  # noqa: NPY002 (the same)
    torch.set_rng_state(state["torch"])
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if devices and devices == len(state["cuda"]):
        torch.cuda.set_rng_state_all(state["cuda"])
    elif devices and state["cuda"]:
        torch.cuda.set_rng_state(state["cuda"][rank % len(state["cuda"])])
    for name, generator in generators.items():
        generator.set_state(state["generators"][name])


def _plain(value: Any) -> Any:
    """Convert numpy arrays and scalars to lists and numbers."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
