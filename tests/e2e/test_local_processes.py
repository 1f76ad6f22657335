"""Tests of `rlcore train ... run.processes=2`, of torchrun's restarts and of `accelerate launch`."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_processes import TIMEOUT_S, inherited, newest_checkpoint, run_process, run_ranks
from warm_python import WarmPython

from rlcore_testing.small import make_llama, make_tokenizer

CONFIG = """
trainer: {name: ppo, rollouts: 8, batch_size: 4}
model: {path: model}
data: {prompts: [ab, c, d, e], reward_fn: "rewards:reward"}
gen: {max_new_tokens: 4}
run: {steps: 3, processes: 2}
checkpoint: {every: 1}
"""
REWARDS = """
import os, pathlib, signal, time
calls = 0
def reward(outputs):
    global calls
    calls += 1
    if os.environ.get("RANK") == "1" and os.environ.get("FAIL") == "once" and calls == 2:
        if not (mark := pathlib.Path("was-killed")).exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("FAIL") == "sleep" and calls == 2:
        pathlib.Path("sleeps-" + os.environ["RANK"]).touch()
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    if os.environ.get("RANK") == "1" and os.environ.get("FAIL") == "raise":
        raise ValueError("no such word")
    return [float(len(output)) for output in outputs]
"""
PROGRAM = """
import rlcore
from rlcore.errors import RanksError
for shard in ("none", "fsdp"):
    try:
        run = {"steps": 1, "name": shard, "shard": shard}
        rlcore.train("model", trainer="sft", samples=["ab", "bc", "cde"], run=run, loggers=[])
    except RanksError as error:
        print(shard, error)
"""
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "--max-restarts",
    "1",
]
ACCELERATE = [
    sys.executable,
    "-m",
    "accelerate.commands.launch",
    "--use_fsdp",
    "--num_processes",
    "2",
    "--main_process_port",
    "0",
]
RLCORE = [sys.executable, "-m", "rlcore", "train", "run.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_llama().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


@pytest.mark.nightly
def test_a_command_starts_its_processes_and_shows_an_error_once(folder: Path) -> None:
    done = run_process([*RLCORE, "run.name=one"], cwd=folder, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 3/3") == 1
    assert '"world": 2' in (newest_checkpoint(folder / "runs/one") / "manifest.json").read_text()
    done = run_process([*RLCORE, "run.name=two"], cwd=folder, PYTHONPATH=str(folder), FAIL="raise")
    assert done.returncode == 1
    assert done.stderr.count("no such word") == 1
    assert "RanksError" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("presses", "code", "saved"), [pytest.param(1, 0, ["00000002"], marks=pytest.mark.nightly), (2, 130, [])]
)
def test_ctrl_c_saves_and_a_second_one_stops_all_processes_at_once(
    folder: Path, presses: int, code: int, saved: list[str]
) -> None:
    options = ["run.name=stopped", "run.steps=1000", "checkpoint.every=0"]
    given = inherited() | {"PYTHONPATH": str(folder), "FAIL": "sleep"}
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            [*RLCORE, *options], cwd=folder, env=given, start_new_session=True, stdout=output, stderr=output
        )
    try:
        wait_for(lambda: len(list(folder.glob("sleeps-*"))) == 2)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        wait_for(lambda: "finishing step 2" in (folder / "output").read_text())
        time.sleep(2)  # torchrun passes the signal on, which for a second does not count as another one
        if presses == 2:
            os.killpg(process.pid, signal.SIGINT)
        else:
            (folder / "go").touch()
        assert process.wait(TIMEOUT_S) == code, (folder / "output").read_text()
        wait_for(lambda: not is_alive(process.pid))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert [file.name for file in folder.glob("runs/stopped/checkpoints/*")] == saved


@pytest.mark.nightly
@pytest.mark.parametrize("start", [[], ["torch.distributed.run"]], ids=["run.processes", "torchrun"])
def test_processes_whose_launcher_is_killed_save_and_end_and_the_run_resumes(folder: Path, start: list[str]) -> None:
    command = [*TORCHRUN[:-2], *RLCORE[1:], "run.processes=1"] if start else RLCORE
    given = inherited() | {"PYTHONPATH": str(folder)}
    for attempt in range(3):
        run = folder / f"runs/orphaned{attempt}"
        options = [f"run.name={run.name}", "run.steps=100000", "checkpoint.every=0", "run.resume=auto"]
        with (folder / "output").open("w") as file:
            process = subprocess.Popen([*command, *options], cwd=folder, env=given, stdout=file, stderr=subprocess.PIPE)
        assert process.stderr is not None
        metrics = run / "metrics.jsonl"
        try:
            wait_for(lambda metrics=metrics: metrics.exists() and metrics.read_text().count("\n") > 2)
        finally:
            process.kill()
        with process, process.stderr:
            printed = process.stderr.read().decode()  # until both processes have ended
        # The first rank to notice stops the other one too, which may end before it has looked for its launcher.
        assert printed.count("its launcher (process") in {1, 2}, printed
        if any((run / "checkpoints").glob("[0-9]*")):
            break  # else a busy machine did not let the step end within the seconds that it has
    saved = int(newest_checkpoint(run).name)
    assert saved >= 2
    done = run_process([*RLCORE, *options, f"run.steps={saved + 1}"], cwd=folder, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr


def is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("shard", ["none", "fsdp"])
def test_a_restarted_run_ends_with_the_weights_of_one_that_was_never_killed(
    folder: Path, shard: str, warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ["-m", "rlcore", "train", "run.yaml", "run.processes=1", "run.resume=auto", f"run.shard={shard}"]
    monkeypatch.chdir(folder)
    straight = run_ranks(warm_python, 2, [*train, "run.name=straight"], PYTHONPATH=str(folder))
    assert straight.returncode == 0, straight.stderr
    killed = run_process([*TORCHRUN, *train, "run.name=killed"], cwd=folder, PYTHONPATH=str(folder), FAIL="once")
    assert killed.returncode == 0, killed.stderr
    assert (folder / "was-killed").exists()
    weights = [(folder / "runs" / name / "model/model.safetensors").read_bytes() for name in ("straight", "killed")]
    assert weights[0] == weights[1]


@pytest.mark.nightly
def test_accelerate_launch_with_fsdp_divides_the_model_or_is_refused(folder: Path) -> None:
    (folder / "program.py").write_text(PROGRAM)
    done = run_process([*ACCELERATE, "program.py"], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("told too: set run.shard=fsdp, or unset ACCELERATE_USE_FSDP") == 2
    manifest = (newest_checkpoint(folder / "runs/fsdp") / "manifest.json").read_text()
    assert '"world": 2' in manifest
