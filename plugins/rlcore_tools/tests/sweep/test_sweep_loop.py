"""Tests of the loop: trials are programs that write metrics.jsonl, as runs do (`sweep_fakes.py`)."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from sweep_fakes import METRIC, make_sweep, records, run_sweep

from rlcore.cli import main
from rlcore.config import load_yaml
from rlcore_tools.sweep.child import Child, MetricFile, environment_of, thinned
from rlcore_tools.sweep.screen import LiveScreen, counted
from rlcore_tools.sweep.sweep_command import open_study
from rlcore_tools.sweep.sweep_folder import claim
from rlcore_tools.sweep.sweep_options import SweepConfig

pytestmark = pytest.mark.usefixtures("often")


@pytest.mark.slow
def test_a_grid_tries_every_combination_and_writes_the_best_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1, 4]", "run.seed=int(5, 6)", "trainer.y=7", sampler="grid")
    assert run_sweep(sweep) == 0
    found = records(sweep)
    assert [(each.parameters["trainer.x"], each.parameters["run.seed"], each.value) for each in found] == [
        (1, 5, 3.0), (1, 6, 3.0), (4, 5, 12.0), (4, 6, 12.0),
    ]  # fmt: skip
    assert found[0].measured == {1: 1.0, 2: 2.0, 3: 3.0}
    best = load_yaml(sweep.folder / "best.yaml")
    assert best == {"run": {"steps": 3, "seed": 5}, "trainer": {"do": "finish", "x": 4, "y": 7}}
    output = capsys.readouterr().out
    assert "a grid of 4 combinations, of which 4 are tried" in output
    assert "trial 2: trainer.x=4, run.seed=5\n" in output
    assert "trial 2: step 3, eval/reward/mean 12\n" in output
    assert "trial 2: done, 12 (best so far)\n" in output
    assert "trial 3: done, 12\n" in output  # equal, so the first stays the best
    assert "4 trials: 4 done\nbest: trial 2, eval/reward/mean 12: trainer.x=4, run.seed=5\n" in output
    assert (sweep.folder / "report.html").is_file()


def test_a_lower_metric_is_better_if_it_is_minimised_and_the_best_value_of_a_run_may_count() -> None:
    measured = {1: 3.0, 2: 1.0, 3: 2.0}
    assert counted(measured, SweepConfig()) == 2.0
    assert counted(measured, SweepConfig(value="best")) == 3.0
    assert counted(measured, SweepConfig(value="best", mode="min")) == 1.0
    with pytest.raises(ValueError, match="eval/reward/mean is not finite at step 3"):
        counted({1: 3.0, 3: float("nan")}, SweepConfig())
    assert counted({1: 3.0, 3: float("nan")}, SweepConfig(value="best")) == 3.0


@pytest.mark.slow
def test_checkpoints_of_the_best_trials_alone_are_kept_on_request(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[2, 1, 4, 3]", sampler="grid", keep_best=2)
    assert run_sweep(sweep) == 0
    trials = sorted((sweep.folder / "trials").glob("*/"))
    assert [(trial / "checkpoints").is_dir() for trial in trials] == [False, False, True, True]
    assert all((trial / "metrics.jsonl").is_file() for trial in trials)


@pytest.mark.slow
def test_a_sweep_is_shown_and_its_report_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]", trials=1)
    assert run_sweep(sweep) == 0
    (sweep.folder / "report.html").unlink()
    capsys.readouterr()
    assert main(["sweep", "--show", str(sweep.folder)]) == 0
    output = capsys.readouterr().out
    assert "1 trials: 1 done\nbest: trial 0, eval/reward/mean 3: trainer.x=1\n" in output
    assert (sweep.folder / "report.html").is_file()


def test_a_terminal_shows_running_trials_first_and_then_the_best(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1, 2, 3]", sampler="grid")
    sweep.folder.mkdir()
    study = open_study(sweep, claim(sweep))
    for value in (0.5, 0.75, None):
        trial = study.ask()
        assert trial is not None
        if value is not None:
            study.report(trial.number, 1, value)
            study.complete(trial.number, value)
    running = Child(2, None, tmp_path / "log", 0, MetricFile(tmp_path / "metrics.jsonl", METRIC))  # type: ignore[arg-type]
    console = Console(file=StringIO(), force_terminal=True, width=120, height=20, color_system=None)
    with LiveScreen(console, sweep, study) as screen:
        screen.event(0, "step 1")
        screen.event(1, "failed: for a reason", matters=True)
        screen.update({2: running})
        drawn = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 1\n" not in drawn
    assert "trial 1: failed: for a reason" in drawn
    rows = [line.split()[:2] for line in drawn.splitlines() if line.split()[1:2] in (["running"], ["done"])]
    assert rows == [["2", "running"], ["1", "done"], ["0", "done"]]


@pytest.mark.slow
def test_trials_run_at_the_same_time_and_share_the_machine(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1, 2]", base={"trainer": {"do": "meet"}}, sampler="grid", parallel=2)
    assert run_sweep(sweep) == 0  # each waits until the other has begun
    assert [each.state for each in records(sweep)] == ["done", "done"]


def test_each_of_several_trials_has_its_share_of_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    two = {"gpus": ["4", "6"], "cores": 9}
    assert environment_of(0, 1, processes=1, **two) == {}
    assert environment_of(2, 3, processes=1, **two) == {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "4"}
    assert environment_of(1, 3, processes=1, **two) == {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "6"}
    assert environment_of(1, 2, processes=2, **two) == {"OMP_NUM_THREADS": "4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment_of(0, 2, processes=1, gpus=[], cores=4) == {}


def test_configurations_with_secrets_can_be_read_by_their_user_alone(tmp_path: Path) -> None:
    base = {"loggers": [{"name": "wandb", "api_key": "abcdef"}], "trainer": {"do": "finish"}}
    sweep = make_sweep(tmp_path, "trainer.x=[1]", base=base | {"run": {"steps": 1}}, trials=1)
    assert run_sweep(sweep) == 0
    for name in ("best.yaml", "trials/00000.yaml"):
        file = sweep.folder / name
        assert load_yaml(file)["loggers"][0]["api_key"] == "abcdef"
        assert file.stat().st_mode & 0o077 == 0
    for name in ("sweep.yaml", "report.html"):
        assert "abcdef" not in (sweep.folder / name).read_text()


def test_a_file_of_metrics_is_read_line_by_line_while_it_grows_and_after_it_was_replaced(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics = MetricFile(file, METRIC)
    assert metrics.read() == []
    file.write_text('{"step": 1, "eval/reward/mean": 0.5}\n{"step": 2, "eval/rew')
    assert metrics.read() == [(1, 0.5)]
    with file.open("a") as out:
        out.write('ard/mean": 1}\nnot json\n{"no": "step"}\n{"step": 3, "loss/total": 1.0}\n')
    assert metrics.read() == [(2, 1.0)]
    assert (metrics.last_step, metrics.is_missing) == (3, False)
    shorter = tmp_path / "shorter"
    shorter.write_text('{"step": 1, "eval/reward/mean": 0.25}\n')
    shorter.replace(file)
    assert metrics.read() == [(1, 0.25)]
    with file.open("a") as out:
        out.write('{"step": 2, "eval/loss": 1.0}\n')
    assert metrics.read() == []
    assert metrics.is_missing
    assert list(metrics.names) == [METRIC, "loss/total", "eval/loss"]


def test_of_many_measurements_the_best_and_the_last_are_kept() -> None:
    nan = float("nan")
    assert thinned([(1, 3.0), (2, 1.0)], "max") == [(1, 3.0), (2, 1.0)]
    many = [(1, 3.0), (2, 1.0), (3, nan), (4, 0.5), (5, 2.0)]
    assert thinned(many, "max") == [(1, 3.0), (5, 2.0)]
    assert thinned(many, "min") == [(4, 0.5), (5, 2.0)]
    assert thinned([(each, 1.0 * each) for each in range(9)], "max") == [(8, 8.0)]
    of_a_population = thinned([(each, -1.0 * each) for each in range(1, 10)], "max", 3)  # also the first after 3, 6, 9
    assert [step for step, _ in of_a_population] == [1, 3, 6, 9]
    assert str(thinned([(each, nan) for each in range(9)], "max")) == "[(8, nan)]"
