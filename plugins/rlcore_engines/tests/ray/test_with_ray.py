"""Tests with a real Ray on this machine: actors and ranks are processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from small_run import write_run

import rlcore
from rlcore.cli import INTERRUPTED, main
from rlcore.config import dump_yaml, load_yaml
from rlcore.sampling import derive_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore_engines.ray import launch
from rlcore_engines.ray.cluster import RayError
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.launch_command import Launch
from rlcore_engines.ray.ray_sampler import RaySampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer

pytestmark = pytest.mark.slow
TIMEOUT_S = 900.0
PATHS = [path for path in [os.environ.get("PYTHONPATH")] if path]
PROBE = """
import json, os, pathlib, signal, sys, time
from rlcore.errors import ConfigError

def command(parser):
    parser.add_argument("action")
    return run

def run(arguments):
    rank = os.environ["RANK"]
    if arguments.action == "show":
        print("rank", rank, "of", os.environ["WORLD_SIZE"], "in", pathlib.Path.cwd().name, flush=True)
        print("warning of", rank, file=sys.stderr, flush=True)
        found = {name: os.environ[name] for name in ("LOCAL_RANK", "MASTER_PORT", "PROBED", "OMP_NUM_THREADS")}
        pathlib.Path("rank-" + rank).write_text(json.dumps(found | {"nice": os.nice(0)}))
    if rank == "1" and arguments.action.endswith(os.environ["TORCHELASTIC_RESTART_COUNT"] + "-fails"):
        raise ConfigError("no such word")
    if rank == "1" and arguments.action.startswith("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if arguments.action in ("show", "saves", "stubborn"):
        if arguments.action != "saves":
            signal.signal(signal.SIGINT, lambda *_: pathlib.Path("pressed-" + rank).touch())
        try:
            pathlib.Path("pid-" + rank).write_text(str(os.getpid()))
            time.sleep(1000)
        except KeyboardInterrupt:
            print("saved", rank, flush=True)
    return 0
"""
PLUGIN = """
from rlcore import hookimpl

@hookimpl
def register_commands(register):
    register("probe", "probe_command:command", summary="shows what a rank is told")
"""


@pytest.fixture(scope="module")
def actors(ray_address: str) -> Any:
    sampler = RaySampler(RayConfig(num_actors=2, address=ray_address, num_cpus=0.5, rows=3))
    yield sampler
    sampler.close()


def test_actors_sample_as_one_process_also_when_one_is_killed_in_mid_round(actors: RaySampler) -> None:
    import ray

    policy, prompts, killed = make_policy(value_head=True), make_prompts(TEXTS * 3), []
    sampling, seeds = SamplingConfig(max_new_tokens=8), derive_seeds(4, range(len(prompts)))
    expected = sample(policy, prompts, sampling, row_seeds=seeds)

    def kill(*_: Any) -> None:
        if not killed:
            killed.append(pids[1])
            os.kill(pids[1], signal.SIGKILL)

    first = actors(policy, prompts, sampling, row_seeds=seeds)
    pids = ray.get([worker.ready.remote() for worker in actors._crew.workers])
    second = actors(policy, prompts, sampling, row_seeds=seeds, on_batch=kill)
    assert killed == pids[1:]
    for seen in (first, second):
        assert torch.equal(seen.tokens, expected.tokens)
        assert seen.columns.keys() == expected.columns.keys()
        for name in seen.columns:
            assert float((seen[name] - expected[name]).abs().max()) < 1e-5
            assert torch.equal(seen[name], first[name])
    again = ray.get([each.ready.options(max_task_retries=-1).remote() for each in actors._crew.workers])
    assert again[0] == pids[0]
    assert again[1] != pids[1]
    perturb(policy)
    third = actors(policy, prompts, sampling, row_seeds=seeds)
    assert torch.equal(third.tokens, sample(policy, prompts, sampling, row_seeds=seeds).tokens)


def test_a_cluster_without_room_is_an_error(ray_address: str) -> None:
    sampler = RaySampler(
        RayConfig(num_actors=2, address=ray_address, num_cpus=0.1, resources={"moon": 1}, start_timeout_s=1)
    )
    with pytest.raises(
        RayError, match=r"0 of 2 actors have started .* each needs CPU 0.1, moon 1, and the cluster has CPU 2"
    ):
        sampler(make_policy(), make_prompts(("a",)), SamplingConfig())
    sampler.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    (site / "probe-1.0.dist-info").mkdir(parents=True)
    (site / "probe-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
    (site / "probe-1.0.dist-info/entry_points.txt").write_text("[rlcore]\nprobe = probe_plugin\n")
    (site / "probe_command.py").write_text(PROBE)
    (site / "probe_plugin.py").write_text(PLUGIN)
    return tmp_path


def launched(folder: Path, address: str, *words: str, output: Path | None = None, **variables: str) -> Any:
    """Start `rlcore *words`, which writes to a file if one is given."""
    given = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": os.pathsep.join([str(folder / "site"), *PATHS])}
    given.pop("WORLD_SIZE", None)
    out, err = (subprocess.PIPE, subprocess.PIPE) if output is None else (output.open("w"), subprocess.STDOUT)
    return subprocess.Popen(
        [sys.executable, "-m", "rlcore", *words], cwd=folder, env=given | variables, stdout=out, stderr=err, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.1)


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def pids_in(folder: Path) -> list[int]:
    wait_for(lambda: len([file for file in folder.glob("pid-*") if file.read_text()]) == 2)
    return [int((folder / f"pid-{rank}").read_text()) for rank in range(2)]


def test_ranks_get_what_torchrun_would_give_them_and_end_after_a_launcher_that_is_killed(
    folder: Path, ray_address: str
) -> None:
    output = folder / "output"
    words = ["ray", "--cpus", "0.5", "--processes", "2", "--env", "PROBED", "probe", "show"]
    process = launched(folder, ray_address, *words, output=output, PROBED="yes", OMP_NUM_THREADS="1")
    pids = pids_in(folder)
    wait_for(lambda: output.read_text().count("\n") == 4)
    shown = [f"rank {rank} of 2 in {folder.name}" for rank in range(2)]
    assert sorted(output.read_text().splitlines()) == [*shown, "warning of 0", "warning of 1"]
    told = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1"]
    assert told[0]["MASTER_PORT"] == told[1]["MASTER_PORT"]
    assert told[0]["PROBED"] == "yes"
    assert told[0]["OMP_NUM_THREADS"] == "1"
    assert told[0]["nice"] == os.nice(0)
    process.kill()
    process.wait()
    wait_for(lambda: not any(map(is_alive, pids)))


Started = Callable[..., int]


@pytest.fixture
def started(folder: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch) -> Started:
    """Return a function that starts a probe in two ranks from this process, as `rlcore ray` does from its own."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder / "site"), *PATHS]))

    def run(action: str, **options: Any) -> int:
        return launch.start(Launch(words=["probe", action], processes=2, address=ray_address, cpus=0.5, **options))

    return run


def test_the_first_error_is_printed_once_and_its_code_is_returned(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    assert started("0-fails") == 1
    assert capfd.readouterr().err == "ConfigError: no such word\n"


def test_all_ranks_start_again_after_one_has_failed_and_not_more_often_than_allowed(
    started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    assert started("killed-after-0-fails", restarts=1) == 1
    assert capfd.readouterr().err == (
        "rlcore ray: ConfigError: no such word; all start again (1 of 1)\n"
        "rlcore: rank 1 was ended by SIGKILL, as for lack of memory\n"
    )


def press(folder: Path, times: int) -> list[int]:
    """Press Ctrl-C in this process when both ranks have started, and again when they have noticed; return their ids."""
    pids = pids_in(folder)
    for number in range(times):
        wait_for(lambda number=number: len(list(folder.glob("pressed-*"))) == 2 * number)
        os.kill(os.getpid(), signal.SIGINT)
    return pids


@pytest.mark.parametrize(("action", "times", "code"), [("saves", 1, 0), ("stubborn", 2, 130)])
def test_ctrl_c_is_passed_on_and_a_second_one_ends_the_ranks(
    started: Started, folder: Path, capfd: pytest.CaptureFixture[str], action: str, times: int, code: int
) -> None:
    with ThreadPoolExecutor(1) as threads:
        pids = threads.submit(press, folder, times)
        assert started(action) == code
        assert not any(map(is_alive, pids.result()))
    expected = [f"saved {rank}" for rank in range(2)] if action == "saves" else []
    assert sorted(capfd.readouterr().out.splitlines()) == expected


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_cluster_has_no_room_ends_the_command_and_frees_the_place(
    folder: Path, ray_address: str, number: signal.Signals
) -> None:
    from ray.util import placement_group_table

    before = set(placement_group_table())

    def states() -> list[str]:
        return [each["state"] for key, each in placement_group_table().items() if key not in before]

    process = launched(folder, ray_address, "ray", "--cpus", "64", "--processes", "2", "probe", "show")
    wait_for(lambda: states() == ["PENDING"])
    process.send_signal(number)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (INTERRUPTED, "rlcore: interrupted\n")
    assert states() == ["REMOVED"]


REWARDS = """
import os, pathlib, signal

def length(outputs):
    has_two_steps = pathlib.Path("runs/two/checkpoints/00000002").exists()
    if has_two_steps and os.environ.get("RANK") == "1" and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(output.count("a")) - output.count("e") for output in outputs]
"""


@pytest.mark.nightly
def test_two_ranks_that_share_an_actor_and_start_again_learn_as_one_process(
    folder: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the ranks is killed in the third step; the run goes on from its checkpoint, with another actor."""
    write_run(folder, REWARDS, steps=3, rollouts="all")
    words = ["train", "run.yaml", "run.name=two", "sampler={name: ray, num_actors: 1, num_cpus: 0}"]
    cluster = "run.cluster={name: ray, cpus: 0.5, restarts: 1, end_timeout_s: 1}"
    process = launched(folder, ray_address, *words, "run.processes=2", cluster)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "rank 1 was ended by SIGKILL, as for lack of memory; all start again (1 of 1)" in err
    monkeypatch.chdir(folder)
    one = rlcore.train(config="run.yaml", run={"name": "one"})
    rows = [
        [(row["step"], row["prompt"], row["output"], row["reward"]) for row in map(json.loads, file.open())]
        for file in (folder / "runs/one/rollouts.jsonl", folder / "runs/two/rollouts.jsonl")
    ]
    assert len(rows[0]) == 24
    assert sorted(rows[1]) == sorted(rows[0])
    two = type(one.policy.model).from_pretrained(folder / "runs/two/model").state_dict()
    for name, weight in one.policy.model.state_dict().items():
        assert torch.allclose(two[name], weight, atol=1e-6), name


@pytest.mark.nightly
def test_a_trial_of_a_sweep_has_several_processes_of_a_cluster_and_learns_as_one(
    folder: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gpt2().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    values = {
        "model": {"path": str(folder / "model")}, "trainer": {"name": "sft", "batch_size": 4},
        "data": {"samples": [list(sample) for sample in SAMPLES], "eval_samples": [["ab", "cde"]]},
        "run": {"steps": 2, "report": False, "processes": 2, "cluster": {"name": "ray", "cpus": 0.5}},
    }  # fmt: skip
    (folder / "x.yaml").write_text(dump_yaml(values))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAY_ADDRESS", ray_address)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    words = ["trainer.optimizer.lr=[1e-2]", "--metric", "eval/loss", "--minimize", "--trials", "1", "--on", "ray"]
    assert main(["sweep", "x.yaml", *words]) == 0, (folder / "sweeps/x/trials/00000.log").read_text()
    measured = [json.loads(line) for line in (folder / "sweeps/x/trials/00000/metrics.jsonl").open()]
    assert '"world": 2' in (folder / "sweeps/x/trials/00000/checkpoints/00000002/manifest.json").read_text()
    given = load_yaml(folder / "sweeps/x/best.yaml")
    one = rlcore.train(config={**given, "run": {"steps": 2, "report": False, "name": "one"}})
    assert measured[-1]["eval/loss"] == pytest.approx(one.metrics["eval/loss"], abs=1e-5)
