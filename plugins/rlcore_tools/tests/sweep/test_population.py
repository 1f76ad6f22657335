"""Population based training: which trial takes whose place, with which values, and from which weights."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from sweep_fakes import make_sweep, records, run_sweep

import rlcore
from rlcore.config import load_yaml
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer
from rlcore_tools.sweep.space import Dimension
from rlcore_tools.sweep.succession import Population, choose_donor, explore, settings_of
from rlcore_tools.sweep.sweep_command import open_study
from rlcore_tools.sweep.sweep_folder import claim
from rlcore_tools.sweep.sweep_options import read_sweep

LR = "trainer.optimizer.lr"

pytestmark = pytest.mark.usefixtures("often")


def choices(number: int, values: list[float], reduction: int, **options: Any) -> set[int | None]:
    """Return all trials that may take the place of one, for many random numbers."""
    options = {"is_maximised": True, **options}
    measured = dict(enumerate(values))
    return {choose_donor(number, measured, reduction, random=Random(seed), **options) for seed in range(40)}


def test_the_worst_of_a_population_are_replaced_by_the_best() -> None:
    values = [3.0, 1.0, 8.0, 5.0, 7.0, 2.0, 6.0, 4.0]  # by hand: of eight, a quarter is two
    assert choices(1, values, 4) == choices(5, values, 4) == {2, 4}
    assert choices(0, values, 4) == {None}
    assert choices(2, values, 4) == {None}
    assert choices(2, values, 4, is_maximised=False) == {1, 5}


def test_a_part_of_a_trial_counts_as_one_and_at_most_half_is_replaced() -> None:
    assert choices(0, [1.0, 2.0, 3.0, 4.0, 5.0], 4) == choices(1, [1.0, 2.0, 3.0, 4.0, 5.0], 4) == {3, 4}
    assert choices(1, [2.0, 1.0, 3.0], 2) == {2}  # ceil(3 / 2) is 2, and half of three is one
    assert choices(0, [2.0, 1.0, 3.0], 2) == {None}
    assert choices(0, [1.0], 2) == {None}


def test_a_metric_that_is_not_finite_is_the_worst() -> None:
    assert choices(0, [math.nan, 1.0], 4) == {1}
    assert choices(0, [math.nan, 1.0], 4, is_maximised=False) == {1}


def test_values_are_changed_by_a_fifth_or_drawn_anew_and_stay_in_the_space() -> None:
    space = [
        Dimension("a", "loguniform", 1e-6, 1e-2), Dimension("b", "uniform", 0.0, 0.5), Dimension("c", "int", 1, 9, 1),
        Dimension("d", "choice", choices=("x", "y", "z")), Dimension("e", "quniform", 0.6, 1.2, 0.2),
    ]  # fmt: skip
    given = {"a": 1e-4, "b": 0.5, "c": 5, "d": "y", "e": 0.8}
    seen = [explore(space, given, Random(seed)) for seed in range(400)]
    for name, exact in (("a", {8e-5, 1.2e-4}), ("b", {0.4, 0.5}), ("c", {4, 6})):
        near = [each[name] for each in seen if any(math.isclose(each[name], value) for value in exact)]
        assert {min(exact, key=lambda value, each=each: abs(value - each)) for each in near} == exact
        assert 0.6 < len(near) / len(seen) < 0.95  # three quarters, and some of the drawn ones
    assert all(1e-6 <= each["a"] <= 1e-2 and 0 <= each["b"] <= 0.5 for each in seen)
    assert {each["c"] for each in seen} == set(range(1, 10))
    assert {each["d"] for each in seen} == {"x", "y", "z"}
    assert {each["e"] for each in seen} == {0.6, 0.8, 1.0, 1.2}
    assert explore(space, given, Random(7)) == explore(space, given, Random(7))


@pytest.mark.slow
def test_a_trial_that_is_worse_ends_and_another_goes_on_from_the_checkpoint_of_the_better_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"trainer": {"do": "population"}, "run": {"steps": 4, "accept_changes": ["gen"]}}
    options = {"prune": "pbt", "parallel": 2, "trials": 3, "min_steps": 2}
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", base=base, **options)
    assert run_sweep(sweep) == 0
    first, worst, last = records(sweep)
    assert [each.state for each in (first, worst, last)] == ["done", "pruned", "done"]
    assert (first.donor, worst.donor, last.donor, last.begun) == (None, None, 0, 2)
    assert worst.reason == "trial 2 goes on from step 2 of trial 0"
    assert last.measured == {3: 60.0, 4: 80.0}
    assert last.parameters["trainer.x"] != first.parameters["trainer.x"]
    trials = sweep.folder / "trials"
    assert (trials / "00002/starts").read_text().split()[1] == "2"
    run = load_yaml(trials / "00002.yaml")["run"]
    assert run["resume"] == str(trials / "00002.from/checkpoints/00000002")
    assert run["accept_changes"] == ["gen", "trainer.x"]
    best = (sweep.folder / "best.yaml").read_text()
    assert "# It went on from step 2 of trial 0 with these values." in best
    assert "trial 2 goes on from step 2 of trial 0" in (sweep.folder / "report.html").read_text()
    assert "trial 2: goes on from step 2 of trial 0; trainer.x=" in capsys.readouterr().out


@pytest.mark.slow
def test_trials_with_a_place_of_their_own_stay_when_there_are_enough(tmp_path: Path) -> None:
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", prune="pbt", parallel=2, trials=5)
    assert run_sweep(sweep) == 0  # trials end at once, so that none is there to go on from
    assert [each.donor for each in records(sweep)][:2] == [None, None]
    assert sum(each.donor is None for each in records(sweep)) == 2


@pytest.mark.slow
def test_a_successor_has_the_weights_of_its_donor_and_its_own_learning_rate(tmp_path: Path) -> None:
    """The donor has trained for two steps; the successor's third step is the same as that of a run that resumes it."""
    model = tmp_path / "model"
    make_gpt2().save_pretrained(model)
    make_tokenizer().save_pretrained(model)
    values = {
        "model": {"path": str(model)}, "trainer": {"name": "sft", "batch_size": 4},
        "data": {"samples": [list(sample) for sample in SAMPLES]}, "eval": {"at_end": False}, "loggers": [],
        "run": {"steps": 3, "report": False}, "checkpoint": {"every": 1},
    }  # fmt: skip
    file = tmp_path / "x.yaml"
    file.write_text(rlcore.config.dump_yaml(values))
    options = {"prune": "pbt", "parallel": 2, "trials": 3, "min_steps": 1, "metric": "loss/total", "mode": "min"}
    sweep = read_sweep(file, [f"{LR}=loguniform(1e-3, 1e-1)"], options, folder=tmp_path / "sweep")
    sweep.folder.mkdir()
    folder = claim(sweep)
    study = open_study(sweep, folder)
    population = Population(sweep, folder, study)
    numbers = [each.number for each in (study.ask(), study.ask()) if each is not None]
    donor = settings_of(sweep, folder, study.record(0))
    rlcore.train(config={**donor, "run": {**donor["run"], "steps": 2}})
    for number, loss in ((0, 1.0), (1, 2.0)):
        study.report(number, 1, loss)
    assert [population.find_donor(number) for number in numbers] == [None, 0]
    (successor,) = population.replace(1, 0)
    given = settings_of(sweep, folder, study.record(successor))
    result = rlcore.train(config=given)
    assert result.run.step == 3
    assert result.run.config.trainer["optimizer"]["lr"] == study.record(successor).parameters[LR]
    assert given["trainer"]["optimizer"]["lr"] != donor["trainer"]["optimizer"]["lr"]
    resumed = {"name": "again", "root": str(tmp_path), "resume": str(folder.run(0) / "checkpoints/00000002")}
    again = {**given, "run": {**given["run"], **resumed, "overwrite": False}}
    expected = rlcore.train(config=again).policy.model.state_dict()
    plain = {**donor, "run": {**donor["run"], **resumed, "name": "plain", "overwrite": False}}
    unchanged = rlcore.train(config=plain).policy.model.state_dict()
    own = result.policy.model.state_dict()
    assert all(torch.equal(own[name], weight) for name, weight in expected.items())
    assert not all(torch.equal(own[name], weight) for name, weight in unchanged.items())


def population_of(tmp_path: Path, *, parallel: int = 2, **options: Any) -> Population:
    """Return a population of trials that are compared at every step and have all begun; none has a process."""
    given = {"prune": "pbt", "parallel": parallel, "trials": 9, "min_steps": 1, **options}
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", **given)
    sweep.folder.mkdir()
    folder = claim(sweep)
    study = open_study(sweep, folder)
    for number in range(parallel):
        study.ask()
        save_checkpoint(folder.run(number), 1)
    return Population(sweep, folder, study)


def save_checkpoint(run: Path, step: int) -> None:
    (run / f"checkpoints/{step:08d}").mkdir(parents=True)
    (run / f"checkpoints/{step:08d}/manifest.json").touch()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_which_trial_is_replaced_does_not_depend_on_which_is_measured_first(
    tmp_path: Path, order: tuple[int, ...]
) -> None:
    population, values = population_of(tmp_path, parallel=4), (3.0, 1.0, 4.0, 2.0)
    donors: dict[int, int | None] = {}
    for number in order:
        assert [population.find_donor(each) for each in donors] == [None] * len(donors)  # one is still to come
        population.study.report(number, 1, values[number])
        donors[number] = None
    assert {number: population.find_donor(number) for number in order} == {0: None, 1: 2, 2: None, 3: None}


def test_a_trial_that_is_far_behind_holds_up_no_comparison(tmp_path: Path) -> None:
    population = population_of(tmp_path, parallel=3)
    for step in (1, 2):
        for number, value in ((0, 1.0), (1, 2.0)):
            population.study.report(number, step, value * step)
    assert [population.find_donor(number) for number in (0, 1)] == [1, None]  # trial 2 has no measurement at all


@pytest.mark.slow
def test_a_comparison_is_made_once_also_by_a_sweep_that_is_continued(tmp_path: Path) -> None:
    population = population_of(tmp_path)
    for number, value in ((0, 1.0), (1, 2.0)):
        population.study.report(number, 1, value)
    assert population.find_donor(0) == 1
    again = Population(population.sweep, population.folder, open_study(population.sweep, population.folder))
    assert again.find_donor(0) is None


@pytest.mark.slow
def test_a_population_that_resumes_reads_no_measurement_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both trials have been measured and compared; their processes find these measurements in their files."""
    population = population_of(tmp_path, trials=2)
    for number, value in ((0, 10.0), (1, 20.0)):
        population.study.report(number, 1, value)
        metrics = f'{{"step": 1, "eval/reward/mean": {value}}}\n'
        (population.folder.run(number) / "metrics.jsonl").write_text(metrics)
    assert run_sweep(population.sweep) == 0
    output = capsys.readouterr().out
    assert "step 1," not in output
    assert output.count("step 2,") == 2


@pytest.mark.slow
def test_no_more_trials_begin_than_were_asked_for(tmp_path: Path) -> None:
    """At step 2, two of four trials are to be replaced, and one further trial is allowed."""
    base = {"trainer": {"do": "crowd"}, "run": {"steps": 4}}
    options = {"prune": "pbt", "parallel": 4, "trials": 5, "min_steps": 2, "reduction": 2}
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", base=base, **options)
    assert run_sweep(sweep) == 0
    assert [each.state for each in records(sweep)] == ["pruned", "done", "done", "done", "done"]


@pytest.mark.slow
@pytest.mark.parametrize(("newest", "begun"), [(1, 1), (2, 2), (3, 1)])  # the runs have three steps
def test_a_successor_begins_with_the_newest_checkpoint_but_the_last_if_its_donor_goes_on_meanwhile(
    tmp_path: Path, newest: int, begun: int
) -> None:
    population = population_of(tmp_path)
    assert population.stop(1, 0)
    if newest > 1:
        save_checkpoint(population.folder.run(0), newest)
        shutil.rmtree(population.folder.run(0) / "checkpoints/00000001")  # as by checkpoint.keep_last
    (successor,) = population.replace(1, 0)
    assert population.study.record(1).reason == f"trial 2 goes on from step {begun} of trial 0"
    assert (population.folder.inherited(successor) / f"checkpoints/{begun:08d}/manifest.json").is_file()
    assert not list(population.folder.trials.glob("00001.*"))


def test_a_trial_stays_if_its_donor_has_made_all_its_steps(tmp_path: Path) -> None:
    population = population_of(tmp_path)
    save_checkpoint(population.folder.run(0), 3)
    assert not population.stop(1, 0)
    assert not population.study.record(1).is_beaten
    assert not list(population.folder.trials.glob("00001.*"))


def test_a_donor_that_was_measured_and_has_not_saved_yet_is_waited_for(tmp_path: Path) -> None:
    population = population_of(tmp_path)
    for number, value in ((0, 2.0), (1, 1.0)):
        population.study.report(number, 1, value)
    shutil.rmtree(population.folder.run(0) / "checkpoints")
    assert population.find_donor(1) is None
    save_checkpoint(population.folder.run(0), 1)
    assert population.find_donor(1) == 0


@pytest.mark.slow
def test_a_sweep_that_was_killed_before_a_worse_trial_had_ended_replaces_it_when_it_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    population = population_of(tmp_path, trials=3)
    for number, value in ((0, 2.0), (1, 1.0)):
        population.study.report(number, 1, value)
    assert population.stop(1, 0)
    assert run_sweep(population.sweep) == 0
    assert [each.state for each in records(population.sweep)] == ["done", "pruned", "done"]
    output = capsys.readouterr().out
    assert "trial 1: stopped at step 1; trial 2 goes on from step 1 of trial 0\n" in output
    assert not (population.folder.run(1) / "starts").exists()


@pytest.mark.slow
def test_a_successor_that_ends_before_its_first_measurement_does_not_end_the_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = {"trainer": {"do": "population, successor ends"}, "run": {"steps": 4}}
    options = {"prune": "pbt", "parallel": 2, "trials": 3, "min_steps": 2}
    sweep = make_sweep(tmp_path, "trainer.x=uniform(1, 2)", base=base, **options)
    assert run_sweep(sweep) == 0
    assert [each.state for each in records(sweep)] == ["done", "pruned", "pruned"]
    assert "trial 2: ended before a measurement after step 2 of trial 0\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_successor_whose_checkpoint_is_lost_fails_and_does_not_begin_anew(tmp_path: Path) -> None:
    population = population_of(tmp_path, trials=3)
    for number, value in ((0, 2.0), (1, 1.0)):
        population.study.report(number, 1, value)
    (successor,) = population.replace(1, 0)
    lost = population.folder.inherited(successor)
    shutil.rmtree(lost / "checkpoints")
    assert run_sweep(population.sweep) == 0
    found = records(population.sweep)[successor]
    assert (found.state, found.measured) == ("failed", {})
    assert found.reason == f"{lost} lacks the checkpoint of step 1 of trial 0, from which this trial was to go on"
