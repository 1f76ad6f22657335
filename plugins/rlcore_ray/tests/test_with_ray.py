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
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.sampling import derive_seeds, sample
from rlcore.settings import SamplingConfig
from rlcore_ray.config import RayConfig
from rlcore_ray.errors import RayError
from rlcore_ray.ray_sampler import RaySampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.rig.sampler_calls import TEXTS, make_policy, make_prompts
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer

pytestmark = pytest.mark.slow
TIMEOUT_S = 900.0
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
        return 0
    if rank == "1" and arguments.action == os.environ["TORCHELASTIC_RESTART_COUNT"] + "-fails":
        raise ConfigError("no such word")
    if rank == "1" and arguments.action == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if arguments.action in ("saves", "stubborn"):
        pathlib.Path("pid-" + rank).write_text(str(os.getpid()))
        if arguments.action == "stubborn":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
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


def launched(folder: Path, address: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    given = {**os.environ, "RAY_ADDRESS": address, "PYTHONPATH": str(folder / "site"), **variables}
    given.pop("WORLD_SIZE", None)
    return subprocess.Popen(
        [sys.executable, "-m", "rlcore", "ray", "--cpus", "0.5", *words], cwd=folder, env=given,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, out, err


def wait_for(is_done: Callable[[], bool]) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not is_done():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_ranks_run_the_command_with_what_torchrun_would_tell_them(folder: Path, ray_address: str) -> None:
    words = ["--processes", "2", "--env", "PROBED", "probe", "show"]
    code, out, err = ended(launched(folder, ray_address, *words, PROBED="yes", OMP_NUM_THREADS="1"))
    assert (code, sorted(out.splitlines())) == (0, [f"rank {rank} of 2 in {folder.name}" for rank in range(2)]), err
    assert sorted(err.splitlines()) == ["warning of 0", "warning of 1"]
    told = [json.loads((folder / f"rank-{rank}").read_text()) for rank in range(2)]
    assert [each["LOCAL_RANK"] for each in told] == ["0", "1"]
    assert told[0]["MASTER_PORT"] == told[1]["MASTER_PORT"]
    assert told[0]["PROBED"] == "yes"
    assert told[0]["OMP_NUM_THREADS"] == "1"
    assert told[0]["nice"] == os.nice(0)


def test_the_first_error_is_printed_once_and_its_code_is_returned(folder: Path, ray_address: str) -> None:
    code, _, err = ended(launched(folder, ray_address, "--processes", "2", "probe", "0-fails"))
    assert (code, err) == (1, "ConfigError: no such word\n")
    code, _, err = ended(launched(folder, ray_address, "--processes", "2", "probe", "killed"))
    assert (code, err) == (1, "rlcore: rank 1 was ended by SIGKILL, as for lack of memory\n")


def test_all_ranks_start_again_after_one_has_failed(folder: Path, ray_address: str) -> None:
    code, _, err = ended(launched(folder, ray_address, "--processes", "2", "--restarts", "1", "probe", "0-fails"))
    assert (code, err) == (0, "rlcore ray: ConfigError: no such word; all start again (1 of 1)\n")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def started(folder: Path) -> list[int]:
    wait_for(lambda: len([file for file in folder.glob("pid-*") if file.read_text()]) == 2)
    return [int((folder / f"pid-{rank}").read_text()) for rank in range(2)]


def test_ctrl_c_is_passed_on_and_a_second_one_ends_the_ranks(folder: Path, ray_address: str) -> None:
    process = launched(folder, ray_address, "--processes", "2", "probe", "saves")
    started(folder)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    code, out, err = ended(process)
    assert (code, sorted(out.splitlines())) == (0, ["saved 0", "saved 1"]), err
    for file in folder.glob("pid-*"):
        file.unlink()
    process = launched(folder, ray_address, "--processes", "2", "probe", "stubborn")
    pids = started(folder)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)
    assert ended(process)[0] == 130
    assert not any(map(is_alive, pids))


def test_ranks_end_after_a_launcher_that_is_killed(folder: Path, ray_address: str) -> None:
    process = launched(folder, ray_address, "--processes", "2", "probe", "stubborn")
    pids = started(folder)
    process.kill()
    process.communicate()
    wait_for(lambda: not any(map(is_alive, pids)))


CONFIG = """
model: {path: model}
trainer: {name: grpo, rollouts: 8, num_generations: 4, optimizer: {lr: 1.0e-2}}
data: {prompts: prompts.jsonl, reward_fn: "rewards:length"}
gen: {max_new_tokens: 5}
loggers: []
eval: {at_end: false}
checkpoint: {every: 1}
run: {root: runs, steps: 3, report: false, rollouts: all, resume: auto}
"""
REWARDS = """
import os, pathlib, signal

def length(outputs):
    has_two_steps = pathlib.Path("runs/two/checkpoints/00000002").exists()
    if has_two_steps and os.environ.get("RANK") == "1" and not pathlib.Path("killed").exists():
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return [float(output.count("a")) - output.count("e") for output in outputs]
"""


def test_two_ranks_that_share_an_actor_and_start_again_learn_as_one_process(
    folder: Path, ray_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the ranks is killed in the third step; the run goes on from its checkpoint, with another actor."""
    make_llama().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    (folder / "run.yaml").write_text(CONFIG)
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    sampler = "sampler={name: ray, num_actors: 1, num_cpus: 0}"
    words = ["--processes", "2", "--restarts", "1", "train", "run.yaml", "run.name=two", sampler]
    code, _, err = ended(launched(folder, ray_address, *words))
    assert code == 0, err
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
