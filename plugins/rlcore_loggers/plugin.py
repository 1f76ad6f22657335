"""Registration of the loggers; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register

LOGGERS = (
    ("tensorboard", "TensorBoard", "TensorBoard event files"),
    ("wandb", "Wandb", "metrics, completions and configuration at Weights & Biases"),
    ("trackio", "Trackio", "metrics, completions and configuration at Trackio"),
    ("mlflow", "Mlflow", "metrics, completions and configuration at MLflow"),
)
"""The name, which is also that of the module and of the extra; the beginning of the names of its classes; a summary."""


@hookimpl
def register_loggers(register: Register) -> None:
    """Register the loggers `tensorboard`, `wandb`, `trackio` and `mlflow`."""
    for name, classes, summary in LOGGERS:
        register(
            name,
            f"rlcore_loggers.{name}:{classes}Logger",
            config=f"rlcore_loggers.config:{classes}Config",
            summary=summary,
        )
