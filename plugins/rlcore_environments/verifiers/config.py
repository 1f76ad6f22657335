"""Options of the environment `verifiers`, and its factory, which imports nothing of rlcore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import config, option, unstructure
from rlcore_environments.verifiers.episodes import Verifiers


@config
class VerifiersConfig:
    """Options of the environment `verifiers`."""

    taskset: str = option(attrs.NOTHING, "id of the taskset: the name of an installed package")
    options: Mapping[str, Any] = option(attrs.Factory(dict), "options of the taskset, such as {split: train}")
    success_reward: float = option(1.0, "an episode with at least this reward is a success")
    train_rows: int = option(1024, "most tasks to train on: those that follow the ones to evaluate on", ge=1, le=10**7)
    eval_rows: int = option(64, "tasks to evaluate on: the first ones of the taskset", ge=0, le=10**7)
    timeout_s: float = option(60.0, "longest time to score an answer", gt=0, unit="seconds")


def make_factory(config: VerifiersConfig) -> Verifiers:
    """Return the factory of episodes; it can be sent to a process of another Python, which may lack rlcore."""
    return Verifiers(unstructure(config))
