"""Tests of the MLflow logger with a real database: what it has stored is what the core writes."""

from __future__ import annotations

import json
import math
import os
import threading
import types
from pathlib import Path
from typing import Any

import pytest
from logged_runs import completions, is_exact, logged, train, train_broken

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from mlflow import MlflowClient

from rlcore.errors import PluginError
from rlcore.settings import TrainConfig
from rlcore_loggers.config import MlflowConfig
from rlcore_loggers.mlflow import MlflowLogger


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/runs.db"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow puts artifacts into `mlruns` of the working folder


def only_run(client: MlflowClient, experiment: str) -> Any:
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def assert_stored(client: MlflowClient, kept: Any, run: Path, *, rows: int) -> None:
    """Check that each metric is stored once under its name and step, and the first completions as tables."""
    found = [
        ((each.step, name), each.value)
        for name in kept.data.metrics
        for each in client.get_metric_history(kept.info.run_id, name)
    ]
    assert len({place for place, _ in found}) == len(found)
    assert {(step, name): value for (step, name), value in found if is_exact(name)} == logged(run)
    files = [file.path for file in client.list_artifacts(kept.info.run_id, "completions")]
    tables = {int(Path(file).stem): read(client, kept, file) for file in files}
    assert tables == {step: table[:rows] for step, table in completions(run).items()}


def read(client: MlflowClient, kept: Any, file: str) -> list[dict[str, Any]]:
    table = json.loads(Path(client.download_artifacts(kept.info.run_id, file)).read_text())
    return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]


@pytest.mark.slow
def test_metrics_completions_and_options_are_stored_as_the_core_writes_them(tmp_path: Path, database: str) -> None:
    logger = {
        "name": "mlflow", "tracking_uri": database, "experiment": "walks", "completions": 2, "tags": {"team": "a"},
    }  # fmt: skip
    run, client = train(tmp_path, logger, steps=3), MlflowClient(tracking_uri=database)
    kept = only_run(client, "walks")
    assert_stored(client, kept, run, rows=2)
    assert {"loss/total", "eval/chars", "time/step_s", "lr"} <= kept.data.metrics.keys()
    assert (kept.info.status, kept.info.run_name, kept.data.tags["team"]) == ("FINISHED", "run", "a")
    assert (kept.data.params["trainer.optimizer.lr"], kept.data.params["run.steps"]) == ("0.003", "3")
    text = Path(client.download_artifacts(kept.info.run_id, "config.yaml")).read_text()
    assert text == (run / "config.yaml").read_text().partition("\ntrainer:")[2].join(["trainer:", ""])


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_without_doubled_steps(tmp_path: Path, database: str) -> None:
    logger = {"name": "mlflow", "tracking_uri": database, "experiment": "resumed"}
    run, client = train_broken(tmp_path, logger), MlflowClient(tracking_uri=database)
    assert only_run(client, "resumed").info.status == "FAILED"
    train(tmp_path, logger, steps=7, resume=str(run / "checkpoints" / "00000004"))
    kept = only_run(client, "resumed")
    assert kept.info.status == "FINISHED"
    assert_stored(client, kept, run, rows=3)


def test_metric_names_that_mlflow_refuses_are_replaced_and_nan_is_logged(tmp_path: Path, database: str) -> None:
    run = types.SimpleNamespace(dir=tmp_path, step=0, total_steps=None, config=TrainConfig())
    logger = MlflowLogger(MlflowConfig(tracking_uri=database, experiment="odd"), run)
    logger.metrics(1, {"loss/nan": math.nan, "eval/reward/mean@temperature=0.5": 1.5})
    logger.close(None)
    values = only_run(MlflowClient(tracking_uri=database), "odd").data.metrics
    assert math.isnan(values["loss/nan"])
    assert values["eval/reward/mean_temperature_0.5"] == 1.5


def test_a_run_whose_server_cannot_be_used_does_not_begin(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"logger 'mlflow' cannot start: .*nowhere") as raised:
        train(tmp_path, {"name": "mlflow", "tracking_uri": "nowhere://x"}, steps=1)
    assert "set `tracking_uri` of this logger" in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_logging_to_a_server_that_does_not_answer_is_given_up(
    tmp_path: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the late call ends with the server
    message = r"logger 'mlflow' cannot start: the server did not answer within timeout_s = 0.2 seconds\n  set `track"
    with pytest.raises(PluginError, match=message):
        train(tmp_path, {"name": "mlflow", "tracking_uri": silent_server, "timeout_s": 0.2}, steps=1)
    assert not (tmp_path / "run").exists()


def test_a_server_that_stops_answering_is_waited_for_once(
    tmp_path: Path, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = types.SimpleNamespace(dir=tmp_path, step=0, total_steps=None, config=TrainConfig())
    logger = MlflowLogger(MlflowConfig(tracking_uri=database, experiment="silent"), run)
    asked, never = [], threading.Event()
    for name in ("log_batch", "set_terminated"):
        monkeypatch.setattr(MlflowClient, name, lambda *_, name=name, **__: (asked.append(name), never.wait()))
    logger._client._timeout_s = 0.2
    for call in (lambda: logger.metrics(1, {"loss": 1.0}), lambda: logger.close(None)):
        with pytest.raises(TimeoutError, match=r"the server did not answer within timeout_s = 0\.2 seconds"):
            call()
    assert asked == ["log_batch"]
    never.set()


def test_a_request_is_given_up_after_20_seconds_unless_another_limit_is_set() -> None:
    assert MlflowConfig().timeout_s == 20
