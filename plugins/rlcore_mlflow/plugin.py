"""Registration of the logger `mlflow`; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the logger `mlflow`."""
    register(
        "mlflow",
        "rlcore_mlflow.logger:MlflowLogger",
        config="rlcore_mlflow.config:MlflowConfig",
        summary="metrics, completions and configuration at MLflow",
    )
