"""Tests of the loop: trials are programs that write metrics.jsonl, as runs do (`sweep_fakes.py`)."""

from __future__ import annotations

import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sweep_fakes
from rich.console import Console
from sweep_fakes import METRIC, make_sweep, records, run_sweep, wait_for

from rlcore.cli import main
from rlcore.config import load_yaml
from rlcore.errors import ConfigError, RunExists, RunInUse
from rlcore_sweep import sweep_loop
from rlcore_sweep.child import Child, environment_of
from rlcore_sweep.metric_file import MetricFile, thinned
from rlcore_sweep.screen import LiveScreen
from rlcore_sweep.study import Study, counted
from rlcore_sweep.sweep_command import open_study
from rlcore_sweep.sweep_folder import SweepFolder, claim
from rlcore_sweep.sweep_options import SweepConfig


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read metrics more often than every 0.2 s, because these trials are short."""
    monkeypatch.setattr(sweep_loop, "POLL_S", 0.02)


def starts(sweep_folder: Path, number: int) -> list[list[str]]:
    """Return the processes of a trial: id, step of the checkpoint that it began from, threads."""
    return [line.split() for line in (sweep_folder / f"trials/{number:05d}/starts").read_text().splitlines()]


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


def test_checkpoints_of_the_best_trials_alone_are_kept_on_request(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[2, 1, 4, 3]", sampler="grid", keep_best=2)
    assert run_sweep(sweep) == 0
    trials = sorted((sweep.folder / "trials").glob("*/"))
    assert [(trial / "checkpoints").is_dir() for trial in trials] == [False, False, True, True]
    assert all((trial / "metrics.jsonl").is_file() for trial in trials)


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


@pytest.mark.parametrize("prune", ["asha", "hyperband"])
def test_the_worse_of_many_trials_are_pruned_and_the_best_never(tmp_path: Path, prune: str) -> None:
    values = ", ".join(str(10 - number) for number in range(10))  # each trial is worse than all before it
    sweep = make_sweep(tmp_path, f"trainer.x=[{values}]", sampler="grid", prune=prune, reduction=2, min_steps=1)
    study = Study(tmp_path / "study.db", sweep.options, sweep.dimensions, total_steps=4)
    last = {}
    while (trial := study.ask()) is not None:
        for step in (1, 2, 4):
            last[trial.number] = step
            if study.report(trial.number, step, trial.parameters["trainer.x"] * step):
                study.prune(trial.number)
                break
        else:
            study.complete(trial.number, trial.parameters["trainer.x"] * 4)
    assert last[0] == 4
    states = [each.state for each in study.records()]
    assert states[0] == "done"
    assert states.count("pruned") >= (9 if prune == "asha" else 3)
    if prune == "asha":  # by hand: all but the first are below it at step 1, and at most one of two goes on
        assert [last[number] for number in range(1, 10)] == [1] * 9


def test_a_minimising_sweep_keeps_the_lowest(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[3, 1]", sampler="grid", mode="min")
    assert run_sweep(sweep) == 0
    assert load_yaml(sweep.folder / "best.yaml")["trainer"]["x"] == 1


def test_asha_prunes_a_trial_that_is_worse_at_the_same_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: with one of two kept, trial 1 (3 at step 1, beside 2) goes on, and trial 2 (1) is pruned there."""
    slow = {"trainer": {"do": "slow"}, "run": {"steps": 2}}
    sweep = make_sweep(tmp_path, "trainer.x=[2, 3, 1]", base=slow, sampler="grid", prune="asha", reduction=2)
    assert run_sweep(sweep) == 0
    found = records(sweep)
    assert [(each.state, each.value, max(each.measured)) for each in found] == [
        ("done", 4.0, 2), ("done", 6.0, 2), ("pruned", 1.0, 1),
    ]  # fmt: skip
    output = capsys.readouterr().out
    assert "trial 2: pruned at step 1\n" in output
    assert "3 trials: 2 done, 1 pruned\n" in output


def test_a_trial_that_is_worse_is_pruned_also_if_the_sweep_is_killed_before_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trial is worse at its first step, and would not be compared again before its second."""
    base, stop, noted = {"trainer": {"do": "slow"}, "run": {"steps": 2}}, Child.stop, list[bool]()
    sweep = make_sweep(tmp_path, "trainer.x=[2, 3, 1]", base=base, sampler="grid", prune="asha", reduction=2)

    def watched(self: Child, why: Any) -> None:
        noted.append(records(sweep)[self.number].is_beaten)
        stop(self, why)

    monkeypatch.setattr(Child, "stop", watched)
    assert run_sweep(sweep) == 0
    assert noted == [True]
    (tmp_path / "killed").mkdir()
    other = make_sweep(tmp_path / "killed", "trainer.x=[2, 3, 1]", base=base, sampler="grid", prune="asha", trials=1)
    other.folder.mkdir()
    study = open_study(other, claim(other))
    assert study.ask() is not None
    study.report(0, 1, 2.0)
    study.note_beaten(0)  # and here the sweep is killed
    assert run_sweep(other) == 1
    assert [(each.state, each.value) for each in records(other)] == [("pruned", 2.0)]
    assert "trial 0: pruned at step 1\n" in capsys.readouterr().out
    assert not (other.folder / "trials/00000/starts").exists()


def test_a_trial_at_its_last_step_is_done_however_bad_it_is(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[2, 1]", "run.steps=1", sampler="grid", prune="asha", reduction=2)
    assert run_sweep(sweep) == 0
    assert [(each.state, each.value) for each in records(sweep)] == [("done", 2.0), ("done", 1.0)]


def test_failed_trials_are_shown_with_the_reason_and_the_sweep_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = make_sweep(
        tmp_path, "trainer.x=[1, 2]", "trainer.do=[fail below 2, die, nan]", sampler="grid", max_failed=0
    )
    assert run_sweep(sweep) == 0
    said = "RewardError: reward_fn raised ValueError: no\\x1b[31m reward <b>"  # control characters are escaped
    killed = "its process was ended by SIGKILL, as for lack of memory"
    infinite = "eval/reward/mean is not finite at step 3"
    expected = [said, killed, infinite, "", killed, infinite]
    assert [each.reason for each in records(sweep)] == expected
    output = capsys.readouterr().out
    for number, reason in enumerate(expected[:3]):
        assert f"trial {number}: failed: {reason}\n" in output
    assert "6 trials: 1 done, 5 failed\n" in output


def test_a_sweep_ends_once_its_first_trials_have_all_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=int(1, 9)", base={"trainer": {"do": "fail"}}, max_failed=2)
    with pytest.raises(ConfigError, match="the first 2 trials have all failed"):
        run_sweep(sweep)
    assert "2 trials: 2 failed\n" in capsys.readouterr().out


def test_a_trial_that_takes_too_long_fails_with_that_reason(tmp_path: Path) -> None:
    slow = {"trainer": {"do": "slow"}, "run": {"steps": 1000}}
    sweep = make_sweep(tmp_path, "trainer.x=[1]", base=slow, trials=1, trial_time_s=0.5, max_failed=0)
    assert run_sweep(sweep) == 1
    (trial,) = records(sweep)
    assert (trial.state, trial.reason) == ("failed", "took longer than 0.5 s, the time of a trial")
    assert trial.seconds >= 0.5


def test_a_metric_that_no_run_has_is_named_with_those_that_there_are(tmp_path: Path) -> None:
    for metric, hint in (
        ("eval/reward/meen", r"Did you mean eval/reward/mean\?"),
        ("loss/totl", r"Did you mean loss/total\?"),
    ):
        sweep = make_sweep(tmp_path, "trainer.x=[1, 2]", metric=metric, sampler="grid")
        names = r"Evaluations have: eval/reward/mean, eval/time_s. Steps have: loss/total"
        with pytest.raises(ConfigError, match=f"no run has the metric {metric}. {hint} {names}"):
            run_sweep(sweep, overwrite=True)
        (trial,) = records(sweep)
        assert trial.reason.startswith("no run has the metric")


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


def test_a_continued_sweep_draws_other_values_than_before(tmp_path: Path) -> None:
    for trials in (2, 4):
        sweep = make_sweep(tmp_path, "trainer.x=uniform(0, 1)", sampler="random", trials=trials)
        assert run_sweep(sweep) == 0
    assert len({each.parameters["trainer.x"] for each in records(sweep)}) == 4


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


@pytest.mark.parametrize(("code", "is_unfinished"), [(130, True), (-signal.SIGTERM, True), (1, False)])
def test_a_trial_that_a_signal_ended_before_its_run_began_is_unfinished(
    code: int, is_unfinished: bool, tmp_path: Path
) -> None:
    """As one that waited for room in a cluster, whose command ends with 130."""
    (tmp_path / "log").touch()
    metrics, process = MetricFile(tmp_path / "metrics.jsonl", METRIC), SimpleNamespace(returncode=code)
    trial = Child(0, process, tmp_path / "log", 0, metrics)  # type: ignore[arg-type]
    assert trial.was_interrupted() is is_unfinished
