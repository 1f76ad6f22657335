from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from rlcore.testing import Case, conformance

FOLDER = Path(tempfile.mkdtemp(prefix="mlflow-"))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.mark.parametrize(
    "law", conformance("rlcore-mlflow", options={"mlflow": {"tracking_uri": f"sqlite:///{FOLDER}/runs.db"}})
)
def test_law(law: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)  # MLflow puts artifacts into `mlruns` of the working folder
    law()
