"""Compare the names and shapes of saved tensors with those of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rlcore.errors import CheckpointError


def check_same_form(folder: Path, what: str, own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Check that a folder's tensors have the policy's names and shapes.

    Raises:
        CheckpointError: names or shapes differ; the message lists them.
    """
    here = {name: weight.shape for name, weight in own.items()}
    there = {name: weight.shape for name, weight in found.items()}
    differing = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
    if not differing:
        return
    name = differing[0]
    raise CheckpointError(
        f"{folder}: its {what} are not this policy's: {', '.join(differing[:5])}; {name} is "
        f"{_shape(there.get(name))} in the folder and {_shape(here.get(name))} in the policy: "
        "build the policy with the options it was saved with"
    )


def _shape(size: torch.Size | None) -> str:
    return "absent" if size is None else "x".join(map(str, size)) or "a number"
