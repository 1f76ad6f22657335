"""The options of the logger `wandb`; light, so that `rlcore show wandb` does not import it."""

from __future__ import annotations

from typing import Literal

from rlcore.config import config, option


@config
class WandbConfig:
    """Where a run appears at Weights & Biases."""

    project: str | None = option(None, "project; WANDB_PROJECT, else `rlcore`, when left out")
    entity: str | None = option(None, "user or team the project belongs to; WANDB_ENTITY, else yours, when left out")
    run_name: str | None = option(None, "name of the run at Weights & Biases; if omitted, that of its folder")
    mode: Literal["online", "offline", "disabled"] | None = option(
        None, "send, keep in the run's folder for `wandb sync`, or do nothing; WANDB_MODE, else online, when left out"
    )
    group: str | None = option(None, "runs of one group are shown together; WANDB_RUN_GROUP when left out")
    tags: tuple[str, ...] = option((), "labels to find the run by")
    completions: int = option(64, "rows of the table of completions of each evaluation; 0 sends none", ge=0)
    start_timeout_s: float = option(
        90.0, "time to wait for wandb; if it is not ready by then, the run does not start", gt=0, unit="seconds"
    )
