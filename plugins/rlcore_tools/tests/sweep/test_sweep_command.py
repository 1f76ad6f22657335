"""Tests of the command line: bad input, the files that it reads, and real trials."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_fakes import wait_for

from rlcore.cli import main
from rlcore.config import dump_yaml, load_yaml
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer
from rlcore_tools.sweep.sweep_folder import claim
from rlcore_tools.sweep.sweep_options import read_sweep, record_of

LR = "trainer.optimizer.lr"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_gpt2().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _here(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration `x.yaml` in the current folder."""
    monkeypatch.chdir(tmp_path)
    values = {
        "model": {"path": str(model)}, "trainer": {"name": "sft", "batch_size": 4},
        "data": {"samples": [list(sample) for sample in SAMPLES], "eval_samples": [["ab", "cde"]]},
        "run": {"steps": 150, "report": False}, "eval": {"every": 1}, "checkpoint": {"every": 50},
    }  # fmt: skip
    Path("x.yaml").write_text(dump_yaml(values), encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([f"{LR}r=loguniform(1e-6, 1e-4)"], f"x.yaml + command line: {LR}r: no such option; did you mean 'lr'?"),
        (["trainer.lr=loguniform(1e-6, 1e-4)"], f"trainer.lr: no such option; did you mean {LR}?"),
        ([f"{LR}=loguniform(1e-4, 1e-6)"], "the lower bound 0.0001 must be below the upper bound 1e-06"),
        (["trainer.batch_size=int(0, 4)"], "trainer.batch_size = 0: must be at least 1"),
        (["trainer.batch_size=uniform(1, 4)"], "for trainer.batch_size, use int(low, high) or logint(low, high)"),
        (["trainer.optimizer.betas=[0.9, 0.95]"], "one value that is a list is [[0.9, 0.95]]"),
        (["trainer.optimizer.name=[adamw, adamww]"], "no optimizer is called 'adamww'. Did you mean 'adamw'"),
        (["run.seed=[0, 1]", "trainer.name=pppo"], "no trainer is called 'pppo'"),
        (["run.steps=3"], "no option is swept"),
        (["run.name=[a, b]"], "run.name: the sweep sets run.name for each trial"),
        (["run=[{name: a}, {name: b}]"], "run: the sweep sets run.name for each trial"),
        ([f"{LR}=loguniform(1e-6, 1e-4)", "--prune", "pbt"], "set --parallel to 2 or more"),
        (["run.seed=[0, 1]", "--prune", "pbt", "--parallel", "2"], "run.seed cannot change in a run that goes on"),
        ([f"{LR}=[1e-4]", "--prune", "pbt", "--parallel", "2", "--sampler", "grid"], "--sampler grid fixes them all"),
        ([f"{LR}=[1e-4]", "--prune", "pbt", "--parallel", "2", "checkpoint.every=0"], "set checkpoint.every"),
        (["run.seed=[0, 1]", "--prune", "asha", "eval.every=0", "--metric", "eval/loss"], "set eval.every"),
        (["run.seed=[0, 1]", "eval={every: 0, at_end: false}"], "no run would have eval/reward/mean"),
        ([f"{LR}=loguniform(1e-6, 1e-4)", "--sampler", "grid"], "a grid needs a list of values"),
        (["run.seed=[0, 1]", "--trials", "0"], "sweep.trials = 0: must be at least 1"),
        (["run.seed=[0, 1]", "--space", "none.yaml"], "none.yaml: cannot be read"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", "x.yaml", *words]) == 1
    assert error in capsys.readouterr().err
    assert [child.name for child in Path().iterdir()] == ["x.yaml"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "the following arguments are required: FILE.yaml (or --show FOLDER)"),
        (["run.seed=[0, 1]"], "FILE.yaml must come before run.seed=[0, 1]"),
        (["x.yaml", "--sampler", "tpee"], "invalid choice: 'tpee'"),
    ],
)
def test_usage_errors_are_one_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["sweep", *words])
    assert caught.value.code == 2
    assert error in capsys.readouterr().err


def test_a_folder_without_a_sweep_is_named_with_the_sweeps_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--show", "sweeps"]) == 1
    assert "sweeps holds no sweep: there is no sweep.yaml" in capsys.readouterr().err
    Path("sweeps/x").mkdir(parents=True)
    Path("sweeps/x/sweep.yaml").write_text("# rlcore sweep\n", encoding="utf-8")
    assert main(["sweep", "--show", "sweeps"]) == 1
    assert "it contains the sweeps x: name one of them" in capsys.readouterr().err
    assert main(["sweep", "--show", "sweeps/x"]) == 1
    assert "sweeps/x/sweep.yaml has no section 'sweep': it was changed or cut off" in capsys.readouterr().err


def test_a_study_that_is_damaged_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x.yaml", "run.seed=[0, 1]", "--metric", "eval/loss"]
    Path("sweeps/x").mkdir(parents=True)
    folder = claim(read_sweep(Path("x.yaml"), words[1:2], {"metric": "eval/loss"}))
    folder.study.write_text("no database", encoding="utf-8")
    for command in (["sweep", *words], ["sweep", "--show", "sweeps/x"]):
        assert main(command) == 1
        said = capsys.readouterr().err
        assert (
            "ConfigError: sweeps/x/study.db: cannot be opened as the study of a sweep: file is not a database" in said
        )
        assert "Traceback" not in said


def test_trials_without_their_study_are_not_numbered_over(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["x.yaml", "run.seed=[0, 1]", "--metric", "eval/loss"]
    Path("sweeps/x").mkdir(parents=True)
    folder = claim(read_sweep(Path("x.yaml"), words[1:2], {"metric": "eval/loss"}))
    log = folder.log(0)
    log.write_text("the only record of a trial", encoding="utf-8")
    assert main(["sweep", *words]) == 1
    said = capsys.readouterr().err
    assert "sweeps/x/study.db is missing, and sweeps/x/trials has trials of which it was the record" in said
    assert [child.name for child in folder.trials.iterdir()] == [log.name]


def test_train_names_the_command_that_reads_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("x.yaml").open("a", encoding="utf-8") as file:
        file.write("sweep: {trials: 3}\n")
    assert main(["train", "x.yaml"]) == 1
    assert "sweep: no such option; it is read by `rlcore sweep FILE.yaml`" in capsys.readouterr().err


def test_without_optuna_the_command_names_it(python: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    code = """
        import sys
        sys.modules["optuna"] = None
        from rlcore.cli import main
        sys.exit(main(["sweep", "x.yaml", "run.seed=[0, 1]"]))
    """
    done = python("-c", textwrap.dedent(code))
    assert done.returncode == 1
    assert "pip install optuna" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_section_of_a_file_is_a_sweep_and_arguments_take_precedence() -> None:
    section = {
        "metric": "eval/loss", "mode": "min", "trials": 7, "prune": "asha",
        "space": {"trainer": {"optimizer": {"lr": "loguniform(1e-6, 1e-4)"}}, "run.seed": [0, 1]},
    }  # fmt: skip
    Path("both.yaml").write_text(dump_yaml({"run": {"steps": 2, "seed": 5}, "sweep": section}), encoding="utf-8")
    sweep = read_sweep(Path("both.yaml"), ["run.seed=[3, 4]", "run.steps=9"], {"trials": 2})
    assert (sweep.options.metric, sweep.options.mode, sweep.options.trials, sweep.options.prune) == (
        "eval/loss", "min", 2, "asha",
    )  # fmt: skip
    assert [(each.path, each.text) for each in sweep.dimensions] == [
        (LR, "loguniform(1e-06, 0.0001)"), ("run.seed", [3, 4]),
    ]  # fmt: skip
    assert sweep.folder == Path("sweeps/both")
    assert sweep.configuration({LR: 1e-5, "run.seed": 4}) == {
        "run": {"steps": 9, "seed": 4}, "trainer": {"optimizer": {"lr": 1e-5}},
    }  # fmt: skip
    Path("again.yaml").write_text(dump_yaml(record_of(sweep)), encoding="utf-8")  # the record is such a file too
    again = read_sweep(Path("again.yaml"), [], {})
    assert (again.dimensions, again.base) == (sweep.dimensions, sweep.base)


def test_the_space_of_another_file_is_completed_by_the_first() -> None:
    Path("space.yaml").write_text("sweep: {trials: 5, space: {run.seed: [0, 1], trainer.clip: 'int(1, 2)'}}\n")
    Path("first.yaml").write_text("sweep: {trials: 3, space: {run.seed: [7]}}\n")
    sweep = read_sweep(Path("first.yaml"), [], {}, space=Path("space.yaml"))
    assert sweep.options.trials == 3
    assert {each.path: each.text for each in sweep.dimensions} == {"run.seed": [7], "trainer.clip": "int(1, 2)"}


SWEEP = ["x.yaml", f"{LR}=[0.02, 1e-7]", "--metric", "eval/loss", "--minimize", "--sampler", "grid", "--prune", "asha"]


def measured(run: Path) -> dict[int, float]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["eval/loss"] for row in rows if "eval/loss" in row}


@pytest.mark.nightly
def test_real_trials_resume_after_a_kill_are_pruned_and_the_best_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
        from pathlib import Path
        from rlcore_tools.sweep.sweep_command import run
        from rlcore_tools.sweep.sweep_options import read_sweep
        given = {{"metric": "eval/loss", "mode": "min", "sampler": "grid", "prune": "asha"}}
        run(read_sweep(Path("x.yaml"), [{SWEEP[1]!r}], given))
    """
    first = Path("sweeps/x/trials/00000")
    killed = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.DEVNULL)
    try:
        wait_for((first / "checkpoints/00000050/manifest.json").exists, most_s=300)
    finally:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert main(["sweep", *SWEEP]) == 0
    output = capsys.readouterr().out
    step = int(output.partition("trial 0: resumes from step ")[2].partition(";")[0])
    assert 50 <= step < 150
    assert "2 trials: 1 done, 1 pruned\n" in output
    assert max(measured(Path("sweeps/x/trials/00001"))) < 150  # and so it was stopped

    assert main(["train", "sweeps/x/best.yaml", "run.name=best", "loggers=[]"]) == 0
    assert load_yaml("sweeps/x/best.yaml")["trainer"]["optimizer"] == {"lr": 0.02}
    log = first.with_suffix(".log").read_text(encoding="utf-8")
    assert f"resumed                        [resume] checkpoint={first}/checkpoints/{step:08d} step={step}" in log
    assert f"finished: {150 - step} steps" in log
    assert measured(Path("runs/best")) == pytest.approx(measured(first), rel=1e-2)  # as if it had not been killed
