"""The options of the logger `mlflow`; light, so that `rlcore show mlflow` does not import mlflow."""

from __future__ import annotations

from collections.abc import Mapping

from rlcore.config import config, option


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
