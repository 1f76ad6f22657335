"""The logger `mlflow`."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from rlcore.config import dump_yaml
from rlcore.errors import PluginError
from rlcore.loggers import display_row
from rlcore.protocols import RunView
from rlcore.rewards import CallTooLong, call_within
from rlcore.settings import to_record
from rlcore_loggers.config import MlflowConfig

FOLDER = "completions"
"""Folder of the artifacts with the tables of completions."""
_REFUSED = re.compile(r"[^\w\-. :/]")  # characters that MLflow allows in no name
_LONGEST = 500  # characters of a parameter's value


class MlflowLogger:
    """Logger of a run to MLflow (`rlcore.protocols.Logger`); a resumed run continues its run at MLflow.

    Values that the MLflow run has already are not sent again, because MLflow would store both.

    Raises:
        PluginError: MLflow cannot start a run; the message contains the reason.
    """

    keeps_elsewhere = True

    def __init__(self, config: MlflowConfig, run: RunView) -> None:
        self._rows = config.completions
        experiment = config.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rlcore"
        id_file = run.dir / "mlflow" / f"run_id-{_REFUSED.sub('_', experiment).replace('/', '_')}"
        goes_on = run.step > 0 and id_file.exists()
        try:
            self._client: Any = _Limited(MlflowClient(tracking_uri=config.tracking_uri), config.timeout_s)
            if goes_on:
                self._id = id_file.read_text(encoding="utf-8").strip()
                self._client.update_run(self._id, status="RUNNING")
            else:
                found = self._client.get_experiment_by_name(experiment)
                parent = self._client.create_experiment(experiment) if found is None else found.experiment_id
                name = config.run_name or run.dir.name
                self._id = self._client.create_run(parent, run_name=name, tags=dict(config.tags)).info.run_id
            self._last = self._last_steps() if goes_on else {}
            self._tables = {file.path for file in self._client.list_artifacts(self._id, FOLDER)} if goes_on else set()
            self._log_options(to_record(run.config))
        except (MlflowException, OSError, ValueError) as error:
            raise PluginError(
                f"logger 'mlflow' cannot start: {error}\n  set `tracking_uri` of this logger, or MLFLOW_TRACKING_URI, "
                "to a server that answers or a database file (sqlite:///mlflow.db); or remove the logger"
            ) from error
        id_file.parent.mkdir(exist_ok=True)
        id_file.write_text(f"{self._id}\n", encoding="utf-8")

    @staticmethod
    def writes_outside(config: MlflowConfig, run: RunView) -> list[Path]:  # noqa: ARG004  the kit passes both
        """Return the folder in which MLflow keeps artifacts of runs whose metrics are in a database file."""
        return [Path("mlruns")]

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation."""
        now = int(time.time() * 1000)
        named = {_REFUSED.sub("_", name): value for name, value in metrics.items()}
        new = [Metric(name, value, now, step) for name, value in named.items() if step > self._last.get(name, -1)]
        if new:
            self._client.log_batch(self._id, metrics=new)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Send a table of the first completions as an artifact."""
        file = f"{FOLDER}/{step:08d}.json"
        if rows and self._rows and file not in self._tables:
            shown = [display_row(row) for row in rows[: self._rows]]
            names = dict.fromkeys(name for row in shown for name in row)
            table = {name: [row.get(name) for row in shown] for name in names}
            self._client.log_table(self._id, table, file)

    def close(self, error: BaseException | None) -> None:
        """Mark the run as finished or, after an error, as failed."""
        self._client.set_terminated(self._id, "FINISHED" if error is None else "FAILED")

    def _last_steps(self) -> dict[str, int]:
        """Return the last step of each metric that the MLflow run has."""
        names = self._client.get_run(self._id).data.metrics
        return {name: max(each.step for each in self._client.get_metric_history(self._id, name)) for name in names}

    def _log_options(self, options: Mapping[str, Any]) -> None:
        """Send the options as a file and as parameters; parameters that the run has cannot change."""
        self._client.log_text(self._id, dump_yaml(options), "config.yaml")
        known = self._client.get_run(self._id).data.params
        params = [Param(name, value) for name, value in _leaves(options) if name not in known]
        for start in range(0, len(params), 100):  # MLflow accepts no more at once
            self._client.log_batch(self._id, params=params[start : start + 100])


class _Limited:
    """A client whose calls raise a TimeoutError if the server does not answer; later calls then raise it at once.

    Args:
        client: the client of MLflow, which repeats requests for several minutes.
        timeout_s: seconds that a call may take.
    """

    def __init__(self, client: MlflowClient, timeout_s: float) -> None:
        self._client, self._timeout_s, self._is_silent = client, timeout_s, False

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return functools.partial(self._call, getattr(self._client, name))

    def _call(self, method: Callable[..., object], *args: object, **kwargs: object) -> Any:
        if not self._is_silent:
            try:
                return call_within(self._timeout_s, functools.partial(method, *args, **kwargs))
            except CallTooLong:
                self._is_silent = True
        raise TimeoutError(f"the server did not answer within timeout_s = {self._timeout_s:g} seconds")


def _leaves(options: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the plain values of nested options by dotted path, as texts."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield _REFUSED.sub("_", f"{prefix}{name}"), str(value)[:_LONGEST]
