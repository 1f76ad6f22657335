"""From the options of the environment `openenv` to its factory, which imports nothing of rlcore."""

from __future__ import annotations

from rlcore.config import unstructure
from rlcore_openenv.config import OpenEnvConfig
from rlcore_openenv.episodes import OpenEnv


def make_factory(config: OpenEnvConfig) -> OpenEnv:
    """Return the factory of episodes; it can be sent to a process of another Python, which may lack rlcore."""
    return OpenEnv(unstructure(config))
