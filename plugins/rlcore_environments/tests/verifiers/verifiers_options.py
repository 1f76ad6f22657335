"""The factory of the tests."""

from __future__ import annotations

from typing import Any

from rlcore.config import structure
from rlcore_environments.verifiers.config import VerifiersConfig, make_factory
from rlcore_environments.verifiers.episodes import Verifiers


def make(**options: Any) -> Verifiers:
    given = {"taskset": "arithmetic_tasks", **options}
    return make_factory(structure(VerifiersConfig, given, where="test", path="data.environment"))
