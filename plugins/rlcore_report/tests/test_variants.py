"""Laws of comparisons: seeds of one configuration belong together, and differences are those of pairs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from report_runs import make_run, write_lines

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.page_data import page_data
from rlcore_report.run_record import read_run
from rlcore_report.variants import compare_variants, distinct_names, option_rows, paired, variants


def test_a_paired_difference_has_students_interval() -> None:
    found = paired("m", "seeds", [1.0, 2.0, 3.0], [2.0, 4.0, 3.0])
    # Differences 1, 2, 0: mean 1, standard deviation 1; 4.303 is t(0.975) with 2 degrees of freedom.
    assert (found.mean, found.a, found.b) == (1.0, 2.0, 3.0)
    assert found.half_width == pytest.approx(4.303 / math.sqrt(3))
    assert found.verdict == "not told apart"
    assert paired("m", "seeds", [1.0, 2.0, 3.0], [3.0, 4.1, 4.9]).verdict == "higher"
    assert paired("m", "seeds", [1.0] * 3, [0.0, 0.1, 0.05]).verdict == "lower"
    single = paired("m", "runs", [1.0], [2.0])
    assert math.isnan(single.half_width)
    assert single.pairs == "run"


def test_runs_that_differ_in_their_seed_are_one_variant(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / f"a-{seed}", steps=4, run={"seed": seed})) for seed in (0, 1)]
    runs.append(read_run(make_run(tmp_path / "b", steps=4, gen={"temperature": 0.5})))
    assert [(kind.label, len(kind.runs)) for kind in variants(runs)] == [("a (2 seeds)", 2), ("b", 1)]


def test_runs_with_one_seed_are_not_counted_as_seeds(tmp_path: Path) -> None:
    runs = [read_run(make_run(tmp_path / f"a-{name}", steps=4, run={"seed": 3})) for name in ("x", "y")]
    assert [kind.label for kind in variants(runs)] == ["a (2 runs)"]


def test_runs_of_one_name_are_shown_with_the_folders_that_differ(tmp_path: Path) -> None:
    folders = [tmp_path / each for each in ("old/walks/ppo", "new/walks/ppo", "new/sft", "grpo", "deep/grpo")]
    named = ["old/walks/ppo", "new/walks/ppo", "sft", f"{tmp_path.name}/grpo", "deep/grpo"]
    assert list(distinct_names(folders).values()) == named
    assert distinct_names([folders[0], folders[0]]) == {folders[0]: "ppo"}
    runs = [read_run(make_run(tmp_path / each / "same", gen={"top_k": i + 1})) for i, each in enumerate("ab")]
    data = page_data(runs)
    assert [run["name"] for run in data["runs"]] == [each["label"] for each in data["variants"]] == ["a/same", "b/same"]


def test_options_of_one_trainer_alone_differ_if_they_are_changed(tmp_path: Path) -> None:
    ppo, grpo = (
        {"name": "ppo", "gamma": 1.0, "lam": 0.9, "clip": 0.2},
        {"name": "grpo", "scale": "batch", "norm": "token"},
    )
    runs = [read_run(make_run(tmp_path / each["name"], trainer=each)) for each in (ppo, grpo)]
    rows = {row.path: row for row in option_rows(runs)}
    assert (rows["trainer.gamma"].default, rows["trainer.norm"].default) == ("1.0", '"token"')
    assert [path for path, row in rows.items() if row.differs] == ["trainer.name", "trainer.lam", "trainer.scale"]
    assert rows["trainer.scale"].values == ("", '"batch"')


def test_runs_are_paired_by_seed_and_by_evaluation_prompt(tmp_path: Path) -> None:
    folders = [
        make_run(tmp_path / f"{name}-{seed}", steps=10, run={"seed": seed}, gen={"temperature": heat})
        for name, heat, seeds in (("a", 1.0, (0, 1, 2)), ("b", 0.5, (2, 1)))
        for seed in seeds
    ]
    for folder, rewards in zip(folders, ([9, 9], [1, 2], [3, 4], [4, 5], [2, 5]), strict=True):
        rows = [{"step": 10, "prompt": f"p{i}", "output": "", "reward": reward} for i, reward in enumerate(rewards)]
        write_lines(RunDir(folder).completions, rows)
    a, b = variants([read_run(folder) for folder in folders])
    found = {each.name: each for each in compare_variants(a, b)}
    assert (found["reward/mean"].pairs, found["reward/mean"].count) == ("seeds", 2)
    prompts = found["reward of the last evaluation"]
    # Seed 1: 1, 2 against 2, 5; seed 2: 3, 4 against 4, 5; the means over seeds are 2, 3 and 3, 5.
    assert (prompts.count, prompts.a, prompts.b, prompts.mean) == (2, 2.5, 4.0, 1.5)
