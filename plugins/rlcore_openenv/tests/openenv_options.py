"""The factory of the tests."""

from __future__ import annotations

from typing import Any

from rlcore.config import structure
from rlcore_openenv.config import OpenEnvConfig
from rlcore_openenv.episodes import OpenEnv
from rlcore_openenv.factory import make_factory


def make(**options: Any) -> OpenEnv:
    return make_factory(structure(OpenEnvConfig, options, where="test", path="data.environment"))
