"""Errors about serving engines."""

from __future__ import annotations

from rlcore.errors import RLCoreError


class EngineError(RLCoreError, RuntimeError):
    """A server that cannot be started or reached, or whose answer cannot be used."""


class StaleWeights(EngineError):
    """A server whose log-probs are not those of the policy's new weights."""


class ServerUnavailable(Exception):
    """A server that does not answer, or answers that it failed: it may work later, or another one does."""
