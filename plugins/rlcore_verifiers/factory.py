"""From the options of the environment `verifiers` to its factory, which imports nothing of rlcore."""

from __future__ import annotations

from rlcore.config import unstructure
from rlcore_verifiers.config import VerifiersConfig
from rlcore_verifiers.episodes import Verifiers


def make_factory(config: VerifiersConfig) -> Verifiers:
    """Return the factory of episodes; it can be sent to a process of another Python, which may lack rlcore."""
    return Verifiers(unstructure(config))
