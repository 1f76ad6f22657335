"""Tests of sweeps of trlX, converted by hand from the meaning of Ray's strategies; nothing is dropped silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcore.cli import main
from rlcore.config import dump_yaml, load_yaml
from rlcore.plugins.registry import all_registries
from rlcore_tools.conversion.trlx_config import convert_sweep

TUNE = {
    "mode": "max", "metric": "mean_reward", "search_alg": "bohb", "scheduler": "hyperbandforbohb", "num_samples": 32,
    "max_concurrent_trials": 8, "time_budget_s": 60, "reuse_actors": True,
}  # fmt: skip


def entry(strategy: str, *values: Any) -> dict[str, Any]:
    return {"strategy": strategy, "values": list(values)}


def convert(tune: dict[str, Any], trainer: str = "ppo", **options: Any) -> Any:
    config = all_registries().trainers.get(trainer).config_class()
    assert config is not None
    named = {name.replace("__", "."): each for name, each in options.items()}
    return convert_sweep({"tune_config": tune, **named}, trainer, config)


def test_a_sweep_becomes_a_section_that_the_sweep_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "sweep.yml", tmp_path / "sweep.yaml"
    file.write_text(
        dump_yaml({
            "tune_config": TUNE, "lr_init": entry("loguniform", 1e-5, 1e-2), "init_kl_coef": entry("uniform", 0, 0.2),
            "method.vf_coef": entry("quniform", 0.5, 2, 0.5),
        })
    )  # fmt: skip
    assert main(["convert", str(file), "--trainer", "ppo", "--out", str(out)]) == 0
    assert load_yaml(out) == {
        "sweep": {
            "mode": "max", "metric": "eval/reward/mean", "trials": 32, "parallel": 8, "time_s": 60, "sampler": "tpe",
            "prune": "hyperband",
            "space": {
                "trainer.optimizer.lr": "loguniform(1e-05, 0.01)", "trainer.kl_coef": "uniform(0, 0.2)",
                "trainer.value_coef": "quniform(0.5, 2, 0.5)",
            },
        }
    }  # fmt: skip
    said = capsys.readouterr().err
    assert "not converted: tune_config.reuse_actors = True" in said
    assert "check: parallel: 8 trials at the same time share one machine, unless the sweep runs --on ray" in said
    pytest.importorskip("rlcore_tools.sweep")
    from rlcore_tools.sweep.sweep_options import read_sweep

    (tmp_path / "run.yaml").write_text("trainer: {name: ppo}\n")
    sweep = read_sweep(tmp_path / "run.yaml", [], {}, space=out)
    assert (sweep.options.trials, sweep.options.prune, len(sweep.dimensions)) == (32, "hyperband", 3)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (entry("randint", 1, 5), "int(1, 4)"),  # the upper bound of Ray's is excluded
        (entry("qrandint", 2, 8, 2), "int(2, 8, 2)"),  # and of this one included
        (entry("lograndint", 1, 9), "logint(1, 8)"),
        (entry("uniform", 0.5, 2), "uniform(0.5, 2)"),
        (entry("choice", 1, 5, 10), [1, 5, 10]),
    ],
)
def test_a_strategy_becomes_a_distribution_with_the_same_values(given: dict[str, Any], expected: Any) -> None:
    assert convert({}, method__ppo_epochs=given).values["sweep"]["space"] == {"trainer.epochs": expected}


def test_values_have_their_names_here_and_paths_of_keyword_arguments_are_found() -> None:
    found = convert(
        {}, method__scale_reward=entry("choice", "running", "ref", None), optimizer__kwargs__lr=entry("choice", 1e-5),
        method__gen_kwargs__temperature=entry("uniform", 0.5, 1), train__batch_size=entry("choice", 16, 32),
        train__seed=entry("randint", 0, 3),
    )  # fmt: skip
    assert found.values["sweep"]["space"] == {
        "trainer.score_scaling": ["running", "first", "none"], "trainer.optimizer.lr": [1e-5],
        "gen.temperature": "uniform(0.5, 1)", "trainer.batch_size": [16, 32], "run.seed": "int(0, 2)",
    }  # fmt: skip
    assert "trainer.batch_size: is the count of all processes together" in found.notes
    assert found.left == []


def test_what_has_no_counterpart_is_listed_with_the_reason() -> None:
    found = convert(
        {"search_alg": "ax"}, method__vf_coef=entry("randn", 0, 1), method__gamma=entry("uniform", 1),
        train__total_steps=entry("choice", 10), method__tau=entry("uniform", 0, 1), temper=entry("choice", 1),
    )  # fmt: skip
    assert found.values["sweep"]["space"] == {}
    left = {line.partition(" = ")[0]: line for line in found.left}
    assert list(left) == [
        "tune_config: sampler",
        *("method.vf_coef", "method.gamma"),
        "train.total_steps",
        *("method.tau", "temper"),
    ]
    assert "there are random, tpe" in left["tune_config: sampler"]
    assert "randn [0, 1]: has no counterpart; strategies with one are uniform, loguniform" in left["method.vf_coef"]
    assert "set run.steps by hand: optimizer steps" in left["train.total_steps"]
    assert "trainer 'ppo' has no trainer.tau" in left["method.tau"]
    assert "no option of this meaning is known" in left["temper"]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("mean_reward", "eval/reward/mean"), ("reward/mean", "eval/reward/mean"),
        ("reward/mean@beta=1", "eval/reward/mean@beta=1"), ("metrics/sentiments", "eval/sentiments"),
        ("losses/total_loss", "losses/total_loss"),
    ],
)  # fmt: skip
def test_a_metric_has_its_name_here(metric: str, expected: str) -> None:
    found = convert({"metric": metric, "mode": "min"})
    assert (found.values["sweep"]["metric"], found.values["sweep"]["mode"]) == (expected, "min")
    assert any(note.startswith("metric: ") for note in found.notes) == (metric == "losses/total_loss")


def test_a_grid_of_lists_alone_has_the_sampler_grid() -> None:
    every = convert({}, train__seed=entry("grid", 0, 1), method__gamma=entry("choice", 0.9, 1.0))
    assert every.values["sweep"]["sampler"] == "grid"
    mixed = convert({}, train__seed=entry("grid", 0, 1), method__gamma=entry("uniform", 0.9, 1.0))
    assert "sampler" not in mixed.values["sweep"]
    assert any(note.startswith("sampler: ") for note in mixed.notes)


def test_an_entry_without_values_and_a_sweep_without_a_trainer_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.yml"
    file.write_text(dump_yaml({"tune_config": TUNE, "lr_init": 3}))
    assert main(["convert", str(file), "--trainer", "ppo"]) == 1
    assert "lr_init = 3: must have a `strategy` and a list of `values`" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", str(file)])
    assert "name one with --trainer (ilql, ppo, rft, sft)" in capsys.readouterr().err
