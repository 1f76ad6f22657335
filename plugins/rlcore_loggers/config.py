"""The options of the loggers; light, so that `rlcore show wandb` does not import wandb."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rlcore.config import config, option


@config
class TensorBoardConfig:
    """Options of a run's event files."""

    log_dir: str | None = option(
        None, "folder of the event files of several runs, which go to a subfolder named like the run; "
        "if omitted, `tensorboard` in the run's folder"
    )  # fmt: skip
    completions: int = option(8, "completions written per evaluation; 0 writes none", ge=0)
    flush_every_s: float = option(30.0, "longest time between flushes of events to disk", gt=0, unit="seconds")


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


@config
class TrackioConfig:
    """Options of a run at Trackio."""

    project: str = option("rlcore", "project of the run")
    run_name: str | None = option(
        None, "name of the run at Trackio; a number is appended if the project has a run of that name; if omitted, the "
        "name of its folder"
    )  # fmt: skip
    group: str | None = option(None, "group with which the run is shown")
    space_id: str | None = option(
        None, "Space of the hub that receives the run; if omitted, TRACKIO_SPACE_ID, else this machine"
    )
    private: bool | None = option(None, "whether a Space that is created is private; if omitted, the hub's default")
    completions: int = option(64, "rows of the table of completions of each evaluation; 0 sends none", ge=0)
    timeout_s: float = option(
        20.0, "time to wait for an answer of the server; without one, the logger gives up", gt=0, le=1e9, unit="seconds"
    )


@config
class MlflowConfig:
    """Options of a run at MLflow."""

    tracking_uri: str | None = option(
        None, "tracking server or database, as `http://localhost:5000` or `sqlite:////data/mlflow.db`; if omitted, "
        "MLFLOW_TRACKING_URI, else MLflow's default"
    )  # fmt: skip
    experiment: str | None = option(None, "experiment of the run; if omitted, MLFLOW_EXPERIMENT_NAME, else `rlcore`")
    run_name: str | None = option(None, "name of the run at MLflow; if omitted, the name of its folder")
    tags: Mapping[str, str] = option({}, "tags of the run")
    completions: int = option(64, "rows of the table of completions of each evaluation; 0 sends none", ge=0)
    timeout_s: float = option(
        20.0, "time to wait for an answer of the server; without one, the logger gives up", gt=0, le=1e9, unit="seconds"
    )
