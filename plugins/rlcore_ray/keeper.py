"""The keeper of the newest weights, an actor without torch, from which those that sample fetch them."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs


@attrs.frozen
class Weights:
    """One version of a policy, as references to objects in Ray's store.

    Attributes:
        version: its name.
        policy: the policy without weights, as `skeleton.dump` returns it, with the precision of the run.
        groups: arrays by name; those that change often are one group, so that the others are not sent again.
    """

    version: str
    policy: Any
    groups: tuple[Any, ...]


class Keeper:
    """Holds the newest weights, so that an actor that was replaced gets them without the process that trains."""

    def __init__(self) -> None:
        self._weights: Weights | None = None
        self._changed = asyncio.Condition()

    async def publish(self, weights: Weights) -> None:
        """Replace the weights."""
        async with self._changed:
            self._weights = weights
            self._changed.notify_all()

    async def fetch(self, version: str) -> Weights:
        """Return the weights of a version, once they are there."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._weights is not None and self._weights.version == version)
        assert self._weights is not None  # noqa: S101  for the type checker
        return self._weights
