"""The options of the loggers that come with the core."""

from __future__ import annotations

from rlcore.config import config, option


@config
class ConsoleConfig:
    """What a person sees of a run."""

    metrics: tuple[str, ...] = option((), "metrics on each step's line, by their full keys; the usual ones when empty")
    every: int = option(1, "print a line after every so many steps; evaluations are always printed", ge=1, unit="steps")
    show: int | None = option(None, "completions printed at an evaluation; `eval.show` when left out", ge=0)
    progress: bool = option(True, "show a progress bar while the output is a terminal")
