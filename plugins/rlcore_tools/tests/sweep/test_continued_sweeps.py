"""Tests of sweeps that are killed, interrupted or out of time, and continued (`sweep_fakes.py`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sweep_fakes
from sweep_fakes import METRIC, make_sweep, records, run_sweep, wait_for

from rlcore.errors import RunExists, RunInUse
from rlcore_tools.sweep.child import Child, MetricFile
from rlcore_tools.sweep.sweep_command import open_study
from rlcore_tools.sweep.sweep_folder import SweepFolder, claim

pytestmark = pytest.mark.usefixtures("often")


def starts(sweep_folder: Path, number: int) -> list[list[str]]:
    """Return the processes of a trial: id, step of the checkpoint that it began from, threads."""
    return [line.split() for line in (sweep_folder / f"trials/{number:05d}/starts").read_text().splitlines()]


def begin(tmp_path: Path, *words: str) -> subprocess.Popen[str]:
    """Start a sweep in a process of its own, and wait until its second trial has made a step; the first is done."""
    process = subprocess.Popen(
        [sys.executable, sweep_fakes.__file__, "--sweep", str(tmp_path), *words], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    wait_for((tmp_path / "sweep/trials/00001/checkpoints/00000001/manifest.json").exists)
    return process


def is_running(number: str) -> bool:
    state = Path("/proc", number, "stat")
    return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"


def continued(tmp_path: Path) -> list[tuple[str, float | None]]:
    """Continue the sweep with quick trials, and return the states and values."""
    sweep = make_sweep(tmp_path, "trainer.x=[1, 2, 3]", base=sweep_fakes.SLOW, sampler="grid", trials=3)
    assert run_sweep(sweep) == 0
    return [(each.state, each.value) for each in records(sweep)]


@pytest.mark.slow
def test_a_killed_sweep_goes_on_with_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    process = begin(tmp_path)
    process.kill()
    process.communicate()
    ((child, _, _),) = starts(tmp_path / "sweep", 1)
    wait_for(lambda: not is_running(child))  # it finished its step and ended by itself
    step = len(list((tmp_path / "sweep/trials/00001/checkpoints").iterdir()))
    assert step < 3
    monkeypatch.setenv(sweep_fakes.QUICK, "1")
    assert continued(tmp_path) == [("done", 3.0), ("done", 6.0), ("done", 9.0)]
    assert len(starts(tmp_path / "sweep", 0)) == 1  # the finished trial was kept
    assert [begun for _, begun, _ in starts(tmp_path / "sweep", 1)] == ["0", str(step)]
    output = capsys.readouterr().out
    assert f"trial 1: resumes from step {step}; trainer.x=2\n" in output
    assert "trial 0: " not in output


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_the_children_which_save_first(tmp_path: Path, number: int) -> None:
    process = begin(tmp_path)
    ((child, _, _),) = starts(tmp_path / "sweep", 1)
    process.send_signal(number)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert not is_running(child)
    assert "waiting for 1 trials to finish their step and save" in output
    assert "trial 1: is unfinished; the same command continues it" in output
    sweep = make_sweep(tmp_path, "trainer.x=[1, 2, 3]", base=sweep_fakes.SLOW, sampler="grid", trials=3)
    assert [each.state for each in records(sweep)] == ["done", "unfinished"]
    assert (sweep.folder / "best.yaml").is_file()


@pytest.mark.slow
def test_a_second_interrupt_ends_children_that_do_not_stop(tmp_path: Path) -> None:
    process = begin(tmp_path, "stubborn")
    ((child, _, _),) = starts(tmp_path / "sweep", 1)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert any("Ctrl-C again ends them at once" in line for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "ended at once; trials continue from their last checkpoints" in output
    assert not is_running(child)


def test_a_run_that_a_signal_from_elsewhere_ended_is_unfinished(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]", base={"trainer": {"do": "stop"}}, trials=1)
    assert run_sweep(sweep) == 1
    assert [each.state for each in records(sweep)] == ["unfinished"]


def test_an_unfinished_trial_without_a_checkpoint_is_run_again_with_its_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", trials=1)
    sweep.folder.mkdir()
    begun = open_study(sweep, claim(sweep)).ask()
    assert begun is not None
    assert run_sweep(sweep) == 0
    (trial,) = records(sweep)
    assert (trial.number, trial.state, trial.parameters) == (0, "done", begun.parameters)
    assert "trial 0: is run again, because it has no checkpoint; trainer.x=1." in capsys.readouterr().out


@pytest.mark.slow
def test_time_ends_a_sweep_which_the_same_command_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"trainer": {"do": "slow from 1"}, "run": {"steps": 3}}
    words = ("trainer.x=[1, 2]",)
    sweep = make_sweep(tmp_path, *words, base=slow, sampler="grid", time_s=1.5)
    run_sweep(sweep)
    assert [each.state for each in records(sweep)][-1] == "unfinished"
    monkeypatch.setenv(sweep_fakes.QUICK, "1")
    longer = make_sweep(tmp_path, *words, base=slow, sampler="grid", time_s=600.0)
    assert run_sweep(longer) == 0
    assert [(each.state, each.value) for each in records(longer)] == [("done", 3.0), ("done", 6.0)]


@pytest.mark.slow
def test_a_continued_sweep_draws_other_values_than_before(tmp_path: Path) -> None:
    for trials in (2, 4):
        sweep = make_sweep(tmp_path, "trainer.x=uniform(0, 1)", sampler="random", trials=trials)
        assert run_sweep(sweep) == 0
    assert len({each.parameters["trainer.x"] for each in records(sweep)}) == 4


@pytest.mark.slow
def test_the_folder_of_another_sweep_is_refused_and_overwritten_on_request(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]", trials=1)
    assert run_sweep(sweep) == 0
    other = make_sweep(tmp_path, "trainer.x=[1]", "trainer.y=2", trials=5, metric="loss/total")
    with pytest.raises(
        RunExists, match=r"metric was 'eval/reward/mean', is 'loss/total'; trainer.y was not set, is 2. "
    ):
        run_sweep(other)
    assert [each.value for each in records(sweep)] == [3.0]
    assert run_sweep(make_sweep(tmp_path, "trainer.x=[2]", trials=1), overwrite=True) == 0
    assert [each.value for each in records(sweep)] == [6.0]


def test_a_folder_of_other_contents_is_left_unchanged(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]")
    sweep.folder.mkdir()
    (sweep.folder / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(RunExists, match="is no sweep, so it is left unchanged"):
            run_sweep(sweep, overwrite=overwrite)
    assert [child.name for child in sweep.folder.iterdir()] == ["notes.txt"]


def test_two_processes_do_not_run_one_sweep(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[1]")
    with SweepFolder(sweep.folder).locked(), pytest.raises(RunInUse, match="another process runs this sweep"):
        run_sweep(sweep)


@pytest.mark.parametrize(("code", "is_unfinished"), [(130, True), (-signal.SIGTERM, True), (1, False)])
def test_a_trial_that_a_signal_ended_before_its_run_began_is_unfinished(
    code: int, is_unfinished: bool, tmp_path: Path
) -> None:
    """As one that waited for room in a cluster, whose command ends with 130."""
    (tmp_path / "log").touch()
    metrics, process = MetricFile(tmp_path / "metrics.jsonl", METRIC), SimpleNamespace(returncode=code)
    trial = Child(0, process, tmp_path / "log", 0, metrics)  # type: ignore[arg-type]
    assert trial.was_interrupted() is is_unfinished
