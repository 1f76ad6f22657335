"""Tests of the trackio logger with the real trackio: what it has stored is what the core writes."""

from __future__ import annotations

import math
import os
import tempfile
import types
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from logged_runs import completions, is_exact, logged, train, train_broken

# Trackio reads this once, when it is imported; without it, runs of the tests would be shown among the user's own.
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))

import trackio
from trackio.sqlite_storage import SQLiteStorage

from rlcore.errors import PluginError
from rlcore.settings import TrainConfig
from rlcore_loggers.config import TrackioConfig
from rlcore_loggers.trackio import TrackioLogger


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    return f"{request.node.name[:20]}-{os.getpid()}"


def stored(project: str, name: str = "run") -> list[tuple[int, str, Any]]:
    rows = SQLiteStorage.get_logs(project, name)
    beside = ("step", "timestamp")
    return [(row["step"], key, value) for row in rows for key, value in row.items() if key not in beside]


def assert_stored(project: str, run: Path, *, rows: int) -> None:
    """Check that each metric is stored once under its name and step, and the first completions as tables."""
    found = stored(project)
    assert set(Counter((step, key) for step, key, _ in found).values()) == {1}
    values = {(step, key): value for step, key, value in found}
    assert {
        place: values[place] for place in values if is_exact(place[1]) and place[1] != "eval/completions"
    } == logged(run)
    tables = {step: value["_value"] for (step, key), value in values.items() if key == "eval/completions"}
    assert tables == {step: table[:rows] for step, table in completions(run).items()}


def test_metrics_completions_and_options_are_stored_as_the_core_writes_them(tmp_path: Path, project: str) -> None:
    logger = {"name": "trackio", "project": project, "group": "all", "completions": 2}
    run = train(tmp_path, logger, steps=3)
    assert_stored(project, run, rows=2)
    assert {"loss/total", "eval/chars", "time/step_s", "lr"} <= {key for _, key, _ in stored(project)}
    (kept,) = trackio.Api().runs(project)
    assert kept.name == "run"
    assert kept.config["trainer"]["optimizer"]["lr"] == 0.003
    assert kept.config["_Group"] == "all"


def test_a_resumed_run_continues_its_run_without_doubled_steps(tmp_path: Path, project: str) -> None:
    logger = {"name": "trackio", "project": project}
    run = train_broken(tmp_path, logger)
    assert max(step for step, *_ in stored(project)) == 6
    train(tmp_path, logger, steps=7, resume=str(run / "checkpoints" / "00000004"))
    assert len(trackio.Api().runs(project)) == 1
    assert_stored(project, run, rows=3)


def test_a_new_run_of_a_used_name_gets_another_name_and_the_users_own_run_is_not_touched(
    tmp_path: Path, project: str, capsys: pytest.CaptureFixture[str]
) -> None:
    own = trackio.init(project=f"{project}-own", name="own", embed=False)
    capsys.readouterr()
    for _ in range(2):
        run = types.SimpleNamespace(dir=tmp_path, step=0, total_steps=None, config=TrainConfig())
        logger = TrackioLogger(TrackioConfig(project=project, run_name="walk"), run)
        logger.metrics(1, {"loss/nan": math.nan, "eval/reward/mean@temperature=0.5": 1.5})
        logger.close(None)
    assert capsys.readouterr().out == ""
    assert sorted(each.name for each in trackio.Api().runs(project)) == ["walk", "walk-2"]
    ((_, _, nan), (_, name, value)) = stored(project, "walk")
    assert math.isnan(float(nan))
    assert (name, value) == ("eval/reward/mean@temperature=0.5", 1.5)
    own.log({"mine": 1})
    own.finish()
    assert stored(f"{project}-own", "own") == [(0, "mine", 1)]


def test_logging_to_a_server_that_does_not_answer_is_given_up(
    tmp_path: Path, project: str, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert TrackioConfig().timeout_s == 20
    monkeypatch.setenv("TRACKIO_SERVER_URL", silent_server)
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "x")
    message = r"logger 'trackio' cannot start: the server did not answer within timeout_s = 0.2 seconds"
    with pytest.raises(PluginError, match=message):
        train(tmp_path, {"name": "trackio", "project": project, "timeout_s": 0.2}, steps=1)
    assert not (tmp_path / "run").exists()
