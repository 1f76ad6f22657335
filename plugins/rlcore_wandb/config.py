"""The options of the logger `wandb`; light, so that `rlcore show wandb` does not import wandb."""

from __future__ import annotations

from typing import Literal

from rlcore.config import config, option


@config
class WandbConfig:
    """Options of a run at Weights & Biases."""

    project: str | None = option(None, "project; if omitted, WANDB_PROJECT, else `rlcore`")
    entity: str | None = option(None, "user or team that owns the project; if omitted, WANDB_ENTITY, else the default")
    run_name: str | None = option(None, "name of the run at Weights & Biases; if omitted, the name of its folder")
    mode: Literal["online", "offline", "disabled"] | None = option(
        None, "send, store in the run's folder for `wandb sync`, or do nothing; if omitted, WANDB_MODE, else online"
    )
    group: str | None = option(None, "group with which the run is shown; if omitted, WANDB_RUN_GROUP")
    tags: tuple[str, ...] = option((), "labels of the run")
    completions: int = option(64, "rows of the table of completions of each evaluation; 0 sends none", ge=0)
    start_timeout_s: float = option(
        20.0,
        "time to wait for wandb's server; without an answer by then, the run does not start",
        gt=0,
        le=1e9,
        unit="seconds",
    )
