"""Options of the built-in loggers."""

from __future__ import annotations

from rlcore.config import config, option


@config
class ConsoleConfig:
    """Options of the console output."""

    metrics: tuple[str, ...] = option(
        (), "metrics on each step's line, by their full keys; those that the trainer names, and usual ones, if empty"
    )
    every: int = option(
        1, "number of steps between two printed lines; evaluations are always printed", ge=1, unit="steps"
    )
    show: int | None = option(None, "completions printed at an evaluation; default: `eval.show`", ge=0)
    progress: bool = option(True, "show a progress bar if the output is a terminal")
