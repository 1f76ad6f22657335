from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest

# Read once, when the library is imported; without the first, runs of the tests would be shown among the user's own.
os.environ.setdefault("TRACKIO_DIR", tempfile.mkdtemp(prefix="trackio-"))
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

from rlcore.errors import PluginError
from rlcore.plugins.registry import registries
from rlcore_testing import Case, conformance

FOLDER = Path(tempfile.mkdtemp(prefix="mlflow-"))
OPTIONS = {"wandb": {"mode": "offline"}, "mlflow": {"tracking_uri": f"sqlite:///{FOLDER}/runs.db"}}


CASES = conformance("rlcore-loggers", options=OPTIONS)
STARTING = ("logger-wandb-", "logger-mlflow-")
"""Loggers whose libraries start a process or a database."""


@pytest.mark.parametrize("law", [case for case in CASES if not str(case.id).startswith(STARTING)])
def test_law(law: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)  # MLflow puts artifacts into `mlruns` of the working folder
    law()


@pytest.mark.slow
@pytest.mark.parametrize("law", [case for case in CASES if str(case.id).startswith(STARTING)])
def test_law_of_loggers_that_start_a_library(law: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FOLDER)
    law()


@pytest.mark.slow
def test_the_folder_of_artifacts_beside_a_new_database_is_declared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = {**OPTIONS, "mlflow": {"tracking_uri": f"sqlite:///{tmp_path}/runs.db"}}
    found = [each.values[0] for each in conformance("rlcore-loggers", options=options)]
    (law,) = (
        each
        for each in found
        if each.law.name == "it_writes_in_the_runs_folder_only" and each.subject.component.name == "mlflow"
    )
    law()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "trackio", "mlflow"])
def test_a_logger_whose_library_is_not_installed_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = {"tensorboard": "torch.utils.tensorboard"}.get(name, name)
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.delitem(sys.modules, f"rlcore_loggers.{name}", raising=False)
    component = registries().loggers.get(name)
    assert component.config_class() is not None  # its options can be shown
    with pytest.raises(PluginError) as caught:
        component.target()
    assert str(caught.value).endswith(f"; pip install 'rlcore-loggers[{name}]'")
