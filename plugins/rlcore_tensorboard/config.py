"""The options of the logger `tensorboard`; light, so that `rlcore show tensorboard` needs no torch."""

from __future__ import annotations

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
