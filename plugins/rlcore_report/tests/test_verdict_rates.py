"""Laws of the labelled runs: there are enough of them, and the documentation states the error rates they give."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from fabricated import BAD, fabricated
from labelled import RUNS, LabelledRun, all_runs, read_run, write_run
from rates import FRESH, PAGE, all_rates, in_page, problems, rates, table

from rlcore.cli.parser import _options_of_models
from rlcore.config import describe
from rlcore.plugins.registry import all_registries
from rlcore.settings import TrainConfig
from rlcore_report.health import judged_run as causes

ALL = all_runs()
CAUSES = {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}


@pytest.mark.slow
def test_the_documentation_states_the_rates_that_are_computed() -> None:
    assert in_page(PAGE.read_text(encoding="utf-8")) == table()


def test_there_are_good_and_broken_runs_of_every_trainer_in_less_than_two_megabytes() -> None:
    trained = [run for run in ALL if run.made == "trained"]
    assert sum(not run.cause for run in trained) >= 10
    assert sum(bool(run.cause) for run in trained) >= 30
    for part in (True, False):
        assert {run.scenario.partition("-")[0] for run in trained if bool(run.cause) is part} == {
            "kto",
            *(trainer.name for trainer in all_registries().trainers),
        }
    assert sum(file.stat().st_size for file in RUNS.glob("*.jsonl")) < 2_000_000
    assert {run.cause for run in ALL if run.cause} <= CAUSES


def test_every_scenario_is_trained_for_the_rules_and_again_to_measure_them() -> None:
    counts = Counter((run.scenario, run.seed >= FRESH) for run in ALL if run.made == "trained")
    assert all(counts[scenario, not measured] > 0 for scenario, measured in counts)


@pytest.mark.slow
def test_on_runs_that_the_rules_were_not_made_on_few_are_missed_and_most_causes_are_right() -> None:
    _, measured, *_ = all_rates()
    assert measured.false_alarms == 0
    assert measured.missed <= 2 / 30 * measured.num_broken
    assert measured.right_cause >= 25 / 30 * measured.num_broken


@pytest.mark.parametrize("kind", BAD)
def test_twelve_bad_and_eight_good_series_of_each_kind_of_trainer_are_told_apart(kind: str) -> None:
    found = rates(kind, [run for run in fabricated() if run.name.startswith(kind)])
    assert (found.num_broken, found.num_good) == (12, 8)
    assert (found.missed, found.false_alarms) == (0, 0)
    assert found.right_cause >= 11


def test_what_follows_from_a_cause_names_it_and_begins_no_earlier() -> None:
    lost = next(run for run in fabricated() if run.name == "policy-bad-3")
    first, *others = problems(lost)
    assert first.follows == ""
    assert others
    assert {each.follows for each in others} == {first.name}
    assert all(each.step >= first.step for each in others)  # type: ignore[operator]


def test_no_learning_rate_is_advised_that_is_more_than_ten_times_another_one() -> None:
    advised = [
        (float(verdict.value), run.config["trainer"]["optimizer"]["lr"])
        for run in [*ALL, *fabricated()]
        for verdict in problems(run)
        if verdict.option == "trainer.optimizer.lr" and run.config["trainer"]["optimizer"].get("lr")
    ]
    assert len(advised) > 100
    assert all(10 * new / old > 0.9 and new / old < 11 for new, old in advised)  # advice has one digit


@pytest.mark.parametrize("cause", ["", "entropy"])
def test_a_wrong_label_is_counted_as_an_error(cause: str) -> None:
    broken = next(run for run in ALL if run.cause and problems(run)[0].cause != "entropy")
    relabelled = LabelledRun(
        name="x", scenario="x", seed=0, cause=cause, made="trained", config=broken.config, metrics=broken.metrics
    )
    found = rates("one", [relabelled])
    assert (found.num_good, found.false_alarms) == ((1, 1) if not cause else (0, 0))
    assert (found.num_broken, found.missed, found.right_cause) == ((1, 0, 0) if cause else (0, 0, 0))


def test_a_run_that_is_written_is_read_again(tmp_path: Path) -> None:
    rows = [{"step": 0, "eval/loss": 2.0}, *({"step": i, "loss/total": 1.23456 / i, "lr": 1e-4} for i in (1, 2, 3))]
    rows = [{**row, "progress/epoch": row["step"] / 8, "grad/norm": 1 / (1 + row["step"])} for row in rows]
    about = {"scenario": "sft-x", "seed": 3, "cause": "", "made": "trained"}
    write_run(tmp_path / "x.jsonl", about, rows, {"trainer": {"name": "sft", "optimizer": {"lr": 1e-4}}, "run": {}})
    found = read_run(tmp_path / "x.jsonl")
    assert (found.scenario, found.seed, found.config["trainer"]["optimizer"]["lr"]) == ("sft-x", 3, 1e-4)
    assert found.metrics["loss/total"].values.tolist() == [1.235, 0.6173, 0.4115]
    assert found.metrics["lr"].values.tolist() == [1e-4] * 3
    assert found.metrics["eval/loss"].steps.tolist() == [0]
    assert found.metrics["progress/epoch"].values.tolist() == [0.0, 0.125, 0.25, 0.375]
    assert found.metrics["progress/epoch"].steps.tolist() == [0, 1, 2, 3]
    assert found.metrics["grad/norm"].values.tolist() == [1.0, 0.5, 0.33, 0.25]


@cache
def _options(trainer: str) -> frozenset[str]:
    common = {row.path for row in describe(TrainConfig)} | {f"model.{path}" for path in _options_of_models()}
    options = all_registries().trainers.get(trainer).config_class()
    assert options is not None
    return frozenset(common | {f"trainer.{row.path}" for row in describe(options)})


PATH = re.compile(r"\b(?:trainer|gen|run|data|checkpoint|model|eval)\.[a-z_.]*[a-z_]")
TRAINED = [run for run in ALL if run.made == "trained"]


@pytest.mark.slow
def test_every_option_that_a_verdict_names_is_one_of_the_trainer() -> None:
    named = {
        (run.config["trainer"]["name"], path)
        for run in TRAINED
        for verdict in problems(run)
        for path in [*PATH.findall(verdict.advice), *([verdict.option] if verdict.option else [])]
    }
    assert len(named) > 50
    assert [(trainer, path) for trainer, path in sorted(named) if path not in _options(trainer)] == []


@pytest.mark.slow
def test_the_metric_that_is_to_rank_checkpoints_is_one_of_the_run() -> None:
    found = [
        (name, run)
        for run in TRAINED
        for verdict in problems(run)
        for name in re.findall(r"checkpoint\.metric=(\S+)", verdict.advice)
    ]
    assert {name for name, _ in found} == {"eval/loss", "eval/loss/total"}
    assert [run.name for name, run in found if name not in run.metrics] == []


@pytest.mark.slow
def test_every_problem_has_its_first_step_and_what_to_do() -> None:
    found = [verdict for run in ALL for verdict in problems(run)]
    assert len(found) > 300
    assert all(verdict.step is not None and verdict.advice and verdict.cause for verdict in found)
