from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rlcore_testing import Case, conformance

FOLDER = Path(tempfile.mkdtemp(prefix="mlflow-"))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.mark.parametrize(
    "law", conformance("rlcore-mlflow", options={"mlflow": {"tracking_uri": f"sqlite:///{FOLDER}/runs.db"}})
)
def test_law(law: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)  # MLflow puts artifacts into `mlruns` of the working folder
    law()


@pytest.mark.slow
def test_the_folder_of_artifacts_beside_a_new_database_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {"mlflow": {"tracking_uri": f"sqlite:///{tmp_path}/runs.db"}}
    found = [each.values[0] for each in conformance("rlcore-mlflow", options=options)]
    (law,) = (each for each in found if each.law.name == "it_writes_in_the_runs_folder_only")
    law()
