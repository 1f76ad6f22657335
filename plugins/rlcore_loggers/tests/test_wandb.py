"""Tests of the wandb logger with the real wandb in offline mode: it records the metrics and completions of the run."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


offline = load("offline")

SCRIPT = """
import json, sys
import rlcore
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer

def measure(outputs):
    measure.calls += 1
    if measure.calls == broken:
        raise ValueError("broken")
    return {"chars": [float(len(output)) for output in outputs]}

measure.calls = 0
root, logger, run, broken = json.loads(sys.argv[1])
rlcore.train(
    make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "sft", "batch_size": 4, "optimizer": {"lr": 3e-3}},
    samples=[list(sample) for sample in SAMPLES], eval_prompts=list(PROMPTS[:3]), metric_fn=measure,
    gen={"max_new_tokens": 5}, eval={"every": 2}, checkpoint={"every": 4, "keep_last": 10},
    run={"root": root, "name": "run", **run}, loggers=[{"name": "wandb", **logger}],
)
print("alive:", "wandb" in sys.modules)
"""


def start(
    folder: Path, logger: dict[str, Any], run: dict[str, Any], *, broken: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Train in a separate process, and check that no child process is left running."""
    known = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    given = json.dumps([str(folder), logger, run, broken])
    mark = f"rlcore-test-{folder}"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, given], env={**known, "HOME": str(folder), "LOGGER_TEST": mark, **environment},
        capture_output=True, text=True, check=False, timeout=600, stdin=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip
    assert not processes_with(mark)
    return done


def processes_with(mark: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in file.read_bytes() and file.parent.name != str(os.getpid()):
                found.append((file.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def folders(run: Path) -> list[Any]:
    return [offline.read_offline(folder) for folder in sorted((run / "wandb").glob("offline-run-*"))]


def logged(run: Path) -> dict[tuple[int, str], float]:
    """Return the content of metrics.jsonl, which the core writes."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(row["step"], name): value for row in rows for name, value in row.items() if name != "step"}


def sent(*histories: list[dict[str, Any]]) -> dict[tuple[int, str], float]:
    """Return the merged metrics of several histories; later values override earlier ones."""
    return {
        (row["step"], name): value
        for history in histories
        for row in history
        for name, value in row.items()
        if name != "step" and not name.startswith("_") and name != "eval/completions"
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    options = {"mode": "offline", "project": "walks", "entity": "team", "run_name": "first", "group": "all",
               "tags": ["a", "b"], "completions": 2}  # fmt: skip
    done = start(folder, options, {"steps": 5})
    assert done.returncode == 0, done.stderr
    assert "alive: True" in done.stdout
    return folder / "run"


@pytest.mark.slow
def test_every_metric_is_in_the_history_at_its_own_step(trained: Path) -> None:
    (kept,) = folders(trained)
    expected = logged(trained)
    assert {"loss/total", "eval/chars", "time/step_s", "lr"} <= {name for _, name in expected}
    assert sent(kept.history) == expected
    assert kept.exit_code == 0
    by_step = [metric for metric in kept.metrics if metric.glob_name == "*"]
    assert [metric.step_metric for metric in by_step] == ["step"]


def test_the_summary_holds_the_last_value_of_each_metric(trained: Path) -> None:
    (kept,) = folders(trained)
    last = {name: value for (_, name), value in sorted(logged(trained).items())}
    for name, value in last.items():
        assert kept.summary[name] == value, name


def test_the_options_and_the_configuration_are_sent(trained: Path) -> None:
    (kept,) = folders(trained)
    assert (kept.run.project, kept.run.entity, kept.run.display_name) == ("walks", "team", "first")
    assert (kept.run.run_group, list(kept.run.tags)) == ("all", ["a", "b"])
    assert kept.run.run_id == (trained / "wandb" / "run_id-team-walks").read_text().strip()
    assert kept.config["trainer"]["optimizer"]["lr"] == 0.003
    assert kept.config["run"]["steps"] == 5


@pytest.mark.nightly
def test_completions_are_logged_as_tables(trained: Path) -> None:
    (kept,) = folders(trained)
    rows = [json.loads(line) for line in (trained / "completions.jsonl").read_text().splitlines()]
    tables = [row for row in kept.history if "eval/completions" in row]
    assert [row["step"] for row in tables] == [2, 4, 5]
    for row in tables:
        columns, values = kept.table(row)
        assert columns == ["prompt", "output", "length", "ended", "chars"]
        assert values == [[r[name] for name in columns] for r in rows if r["step"] == row["step"]][:2]


@pytest.mark.nightly
def test_a_resumed_run_keeps_its_id_and_logs_repeated_steps_equally(tmp_path: Path) -> None:
    failed = start(tmp_path, {"mode": "offline"}, {"steps": 7}, broken=3)  # in the evaluation after step 6
    assert failed.returncode == 1
    assert "RewardError" in failed.stderr
    run = tmp_path / "run"
    again = start(tmp_path, {"mode": "offline"}, {"steps": 7, "resume": str(run / "checkpoints" / "00000004")})
    assert again.returncode == 0, again.stderr
    first, second = folders(run)
    assert first.run.run_id == second.run.run_id
    assert (first.run.project, first.run.display_name) == ("rlcore", "run")
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert {row["step"] for row in first.history} == {1, 2, 3, 4, 5, 6}
    assert {row["step"] for row in second.history} == {5, 6, 7}
    assert sent(first.history, second.history) == logged(run)
    repeated = sent(second.history)
    for place, value in sent(first.history).items():
        is_measured = "time" in place[1] or "perf/" in place[1]
        assert is_measured or repeated.get(place, value) == value


@pytest.mark.slow
def test_a_run_whose_wandb_cannot_start_does_not_begin(tmp_path: Path) -> None:
    done = start(tmp_path, {"mode": "online"}, {"steps": 1})
    assert done.returncode == 1
    error = done.stderr[done.stderr.index("rlcore.errors.PluginError") :]
    assert error.startswith("rlcore.errors.PluginError: logger 'wandb' cannot start: No API key configured.")
    assert "`mode: offline`" in error
    assert not (tmp_path / "run" / "model").exists()


BEGIN = """
import os, sys, types
from pathlib import Path
import wandb
from rlcore.settings import TrainConfig
from rlcore_loggers.config import WandbConfig
from rlcore_loggers.wandb import WandbLogger
run = types.SimpleNamespace(dir=Path(sys.argv[1]) / "run", step=0, total_steps=None, config=TrainConfig())
run.dir.mkdir(exist_ok=True)
"""
OWN = """
own = wandb.init(project="own", mode="offline", dir=sys.argv[1])
out = sys.stdout
logger = WandbLogger(WandbConfig(mode="offline", start_timeout_s=300), run)
logger.metrics(1, {"loss/nan": float("nan"), "loss/inf": float("-inf"), "big": 2.0**60 + 0.1})
rows = [{"prompt": "a", "output": "x" * 50000, "reward": 1.5}, {"prompt": "b", "reward": None, "m": "t"}]
logger.completions(1, rows)
logger.close(None)
assert wandb.run is own and sys.stdout is out
own.log({"mine": 1})
own.finish()
"""


OFTEN = """
ids = []
for step, mode in [(0, None), (0, None), (3, None), (0, "disabled")]:
    run.step = step
    logger = WandbLogger(WandbConfig(mode=mode), run)
    logger.metrics(step + 1, {"loss/total": 1.0})
    logger.completions(step + 1, [{"prompt": "a", "output": "b"}])
    logger.close(None)
    ids.append((run.dir / "wandb" / "run_id-walks").read_text().strip())
assert ids[0] != ids[1] == ids[2] != ids[3], ids
"""


TWO = """
for step in (0, 3):
    run.step = step
    both = [WandbLogger(WandbConfig(mode="offline", project=project), run) for project in ("mine", "ours")]
    for logger in both:
        logger.metrics(step + 1, {"loss/total": 1.0})
    for logger in both:
        logger.close(None)
"""


def log_in_a_process(folder: Path, script: str, **environment: str) -> None:
    known = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script, str(folder)], capture_output=True, text=True, check=False, timeout=600,
        env={**known, "HOME": str(folder), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_run_that_starts_anew_gets_a_new_id_and_disabled_mode_writes_nothing(tmp_path: Path) -> None:
    log_in_a_process(tmp_path, OFTEN, WANDB_MODE="offline", WANDB_PROJECT="walks")
    first, second, third = sorted(folders(tmp_path / "run"), key=lambda kept: kept.folder.name)
    assert {kept.run.project for kept in (first, second, third)} == {"walks"}
    assert len({kept.run.run_id for kept in (first, second, third)}) == 2


@pytest.mark.nightly
def test_two_loggers_of_different_projects_resume_each_under_its_own_id(tmp_path: Path) -> None:
    log_in_a_process(tmp_path, TWO)
    kept = [each.run for each in folders(tmp_path / "run")]
    assert sorted(run.project for run in kept) == ["mine", "mine", "ours", "ours"]
    assert len({(run.project, run.run_id) for run in kept}) == 2
    assert len({run.run_id for run in kept}) == 2


@pytest.mark.slow
def test_a_wandb_run_of_the_users_program_is_not_touched_and_nan_and_infinity_are_logged(tmp_path: Path) -> None:
    log_in_a_process(tmp_path, OWN)
    (kept,) = folders(tmp_path / "run")
    row, with_table = kept.history
    assert math.isnan(float(row["loss/nan"]))
    assert float(row["loss/inf"]) == -math.inf
    assert row["big"] == 2.0**60
    columns, values = kept.table(with_table)
    assert columns == ["prompt", "output", "reward", "m"]
    assert values == [["a", "x" * 50000, 1.5, None], ["b", None, None, "t"]]
    (own,) = folders(tmp_path)
    assert [row["mine"] for row in own.history] == [1]


SILENT = """
from rlcore.errors import PluginError
assert WandbConfig().start_timeout_s == 20
try:
    WandbLogger(WandbConfig(start_timeout_s=0.5), run)
except PluginError as error:
    assert "cannot start: its server did not answer within start_timeout_s = 0.5 seconds" in str(error), error
    sys.stdout.flush()
    os._exit(0)  # without wandb's own end, which waits for the server
raise AssertionError
"""


@pytest.mark.slow
def test_logging_to_a_server_that_does_not_answer_is_given_up(tmp_path: Path, silent_server: str) -> None:
    log_in_a_process(tmp_path, SILENT, WANDB_BASE_URL=silent_server, WANDB_API_KEY="x" * 40, WANDB_MODE="online")
