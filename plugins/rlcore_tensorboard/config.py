"""The options of the logger `tensorboard`; light, so that `rlcore show tensorboard` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option


@config
class TensorBoardConfig:
    """Event files of a run."""

    log_dir: str | None = option(
        None, "folder of all runs' event files, in which this run's get a folder of its name; "
        "`tensorboard` in the run's own folder when left out"
    )  # fmt: skip
    completions: int = option(8, "completions shown of each evaluation; 0 shows none", ge=0)
    flush_every_s: float = option(30.0, "events are flushed to disk at least this often", gt=0, unit="seconds")
