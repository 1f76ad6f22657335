"""Errors about Ray."""

from __future__ import annotations

from rlcore.errors import RLCoreError


class RayError(RLCoreError, RuntimeError):
    """A cluster that cannot be reached or has no room, or actors that are lost."""
