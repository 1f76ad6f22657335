"""The default dtype and device of torch, which a user's code shares with the policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def same_defaults() -> Iterator[list[str]]:
    """Restore the default dtype and device after the block; the list then holds a message if the block changed them."""
    changes: list[str] = []
    dtype, device = before = torch.get_default_dtype(), torch.get_default_device()
    try:
        yield changes
    finally:
        now = torch.get_default_dtype(), torch.get_default_device()
        if now != before:
            torch.set_default_dtype(dtype)
            torch.set_default_device(None if device.type == "cpu" else device)
            changes.append(
                f"changed the defaults of torch to {now[0]} on {now[1]}, with which the policy would compute too; pass "
                "dtype and device to the functions that create tensors instead"
            )
