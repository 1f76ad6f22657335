"""The rollout store in memory."""

from __future__ import annotations

from typing import Any

import attrs

from rlcore.errors import EmptyStore
from rlcore.types import Trajectories


class MemoryStore:
    """Keeps trajectories in memory, in the order in which they were appended."""

    def __init__(self) -> None:
        self._parts: list[Trajectories] = []

    def append(self, batch: Trajectories) -> None:
        """Add a batch; all batches must have the same columns."""
        self._parts.append(batch)

    def take(self) -> Trajectories:
        """Return all sequences as one batch and empty the store.

        Raises:
            EmptyStore: nothing has been appended since the last call.
        """
        if not self._parts:
            raise EmptyStore("the rollout store is empty: append a batch before taking one")
        parts, self._parts = self._parts, []
        device = parts[-1].tokens.device  # batches restored from a checkpoint lie on the CPU
        return parts[0] if len(parts) == 1 else Trajectories.concat([part.to(device) for part in parts])

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def state_dict(self) -> dict[str, Any]:
        """Return all batches."""
        return {"parts": [attrs.asdict(part, recurse=False) for part in self._parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the batches from `state_dict`."""
        self._parts = [Trajectories(**part) for part in state["parts"]]
