"""Tests of trials that are pruned, fail, take too long or measure nothing (`sweep_fakes.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sweep_fakes import make_sweep, records, run_sweep

from rlcore.config import load_yaml
from rlcore.errors import ConfigError
from rlcore_tools.sweep.child import Child
from rlcore_tools.sweep.screen import Study
from rlcore_tools.sweep.sweep_command import open_study
from rlcore_tools.sweep.sweep_folder import claim

pytestmark = pytest.mark.usefixtures("often")


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_minimising_sweep_keeps_the_lowest(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[3, 1]", sampler="grid", mode="min")
    assert run_sweep(sweep) == 0
    assert load_yaml(sweep.folder / "best.yaml")["trainer"]["x"] == 1


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_trial_at_its_last_step_is_done_however_bad_it_is(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=[2, 1]", "run.steps=1", sampler="grid", prune="asha", reduction=2)
    assert run_sweep(sweep) == 0
    assert [(each.state, each.value) for each in records(sweep)] == [("done", 2.0), ("done", 1.0)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_sweep_ends_once_its_first_trials_have_all_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=int(1, 9)", base={"trainer": {"do": "fail"}}, max_failed=2)
    with pytest.raises(ConfigError, match="the first 2 trials have all failed"):
        run_sweep(sweep)
    assert "2 trials: 2 failed\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_trial_that_takes_too_long_fails_with_that_reason(tmp_path: Path) -> None:
    slow = {"trainer": {"do": "slow"}, "run": {"steps": 1000}}
    sweep = make_sweep(tmp_path, "trainer.x=[1]", base=slow, trials=1, trial_time_s=0.5, max_failed=0)
    assert run_sweep(sweep) == 1
    (trial,) = records(sweep)
    assert (trial.state, trial.reason) == ("failed", "took longer than 0.5 s, the time of a trial")
    assert trial.seconds >= 0.5


@pytest.mark.slow
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
