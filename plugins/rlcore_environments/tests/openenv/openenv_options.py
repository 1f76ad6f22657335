"""The factory of the tests."""

from __future__ import annotations

from typing import Any

from rlcore.config import structure
from rlcore_environments.openenv.config import OpenEnvConfig, make_factory
from rlcore_environments.openenv.episodes import OpenEnv


def make(**options: Any) -> OpenEnv:
    return make_factory(structure(OpenEnvConfig, options, where="test", path="data.environment"))
