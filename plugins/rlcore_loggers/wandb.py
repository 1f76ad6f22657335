"""The logger `wandb`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar

import wandb

from rlcore.errors import PluginError
from rlcore.loggers import display_row
from rlcore.protocols import RunView
from rlcore.rewards import CallTooLong, call_within
from rlcore.settings import to_record
from rlcore_loggers.config import WandbConfig

STEP = "step"
"""The metric on the horizontal axis of charts. wandb's own step cannot decrease, but a resumed run may repeat steps."""

OFFLINE_S = 90.0
"""How long wandb's own process may take to start, which a server has no part in."""


class WandbLogger:
    """Logger of a run to Weights & Biases (`rlcore.protocols.Logger`); a resumed run keeps its wandb id.

    The logger starts a wandb run of its own and leaves a run that the program started with `wandb.init` unchanged.
    Console output is not captured, so the run writes to its terminal directly.

    Raises:
        PluginError: wandb cannot start, for example because no user is logged in; the message contains the reason.
    """

    _living: ClassVar[dict[str, wandb.Run]] = {}
    """The open wandb runs of this process, by id."""

    def __init__(self, config: WandbConfig, run: RunView) -> None:
        self._rows = config.completions
        project = config.project or os.environ.get("WANDB_PROJECT") or "rlcore"
        # A run may be logged to several projects at once, with an id in each.
        id_file = run.dir / "wandb" / "-".join(["run_id", *([config.entity] if config.entity else []), project])
        goes_on = run.step > 0 and id_file.exists()
        run_id = id_file.read_text(encoding="utf-8").strip() if goes_on else None
        if run_id is not None and run_id in self._living:  # still open in this process; wandb accepts an id only once
            self._living.pop(run_id).finish(exit_code=1)

        is_online = (config.mode or os.environ.get("WANDB_MODE") or "online") == "online"
        limit_s = config.start_timeout_s if is_online else max(config.start_timeout_s, OFFLINE_S)

        def start() -> wandb.Run:
            return wandb.init(
                project=project,
                entity=config.entity,
                name=config.run_name or run.dir.name,
                mode=config.mode,
                group=config.group,
                tags=config.tags or None,
                id=run_id,
                resume="allow" if goes_on else None,
                dir=run.dir,
                config=to_record(run.config),
                reinit="create_new",
                # No symbolic link to the latest wandb run, so that a run's folder can be copied.
                settings=wandb.Settings(console="off", symlink=False, init_timeout=limit_s),
            )

        try:
            self._run: wandb.Run = call_within(limit_s, start) if is_online else start()
        except (wandb.Error, ValueError, OSError, CallTooLong) as error:
            late = f"its server did not answer within start_timeout_s = {config.start_timeout_s:g} seconds"
            reason = late if isinstance(error, CallTooLong) else error
            raise PluginError(
                f"logger 'wandb' cannot start: {reason}\n  log in with `wandb login` or WANDB_API_KEY; or set "
                "`mode: offline` for this logger, which stores the run on disk for `wandb sync`; or remove the logger"
            ) from error
        id_file.parent.mkdir(exist_ok=True)
        id_file.write_text(f"{self._run.id}\n", encoding="utf-8")
        self._living[self._run.id] = self._run
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation."""
        self._run.log({STEP: step, **metrics})

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Send a table of the first completions."""
        if not rows or not self._rows:
            return
        shown = [display_row(row) for row in rows[: self._rows]]
        names: list[str | int] = list(dict.fromkeys(name for row in shown for name in row))
        values = [[row.get(str(name)) for name in names] for row in shown]
        self._run.log({STEP: step, "eval/completions": wandb.Table(names, values, allow_mixed_types=True)})

    def close(self, error: BaseException | None) -> None:
        """Send remaining data and mark the run as finished or, after an error, as failed."""
        if self._living.get(self._run.id) is self._run:
            del self._living[self._run.id]
            self._run.finish(exit_code=0 if error is None else 1)
