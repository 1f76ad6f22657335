"""The options of the logger `trackio`; light, so that `rlcore show trackio` does not import trackio."""

from __future__ import annotations

from rlcore.config import config, option


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
