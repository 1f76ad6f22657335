"""A server that the run starts is ended with the run, however that ends, and started again when it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_sampler_runs
import torch
from test_sampler_runs import make_policy, rollouts, weights
from vllm_stand_in import StandIn

import rlcore
from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError, StaleWeights
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward

HERE = Path(__file__).parent
SAMPLING = SamplingConfig(max_new_tokens=5)
ROWS = [Prompt("ab", (0, 1)), Prompt("c", (2,))]


@pytest.fixture
def options(stand_in: StandIn, tmp_path: Path) -> dict[str, Any]:
    """Return the options of a sampler whose Python leads to the stand-in, and where it writes what it was given."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S {HERE / "fake_vllm.py"} "$@"\n')
    python.chmod(0o755)
    port = stand_in.url.rpartition(":")[2]
    env = {"FAKE_VLLM_REPORT": str(tmp_path / "report.json"), "STAND_IN_PORT": port}
    return {"python": str(python), "env": env, "start_timeout_s": 300.0}


def hold_after(stand_in: StandIn, count: int) -> Callable[[], None]:
    """Answer so many requests, and the others only when the function that is returned has been called.

    Without it, a server may have answered all of them before it is killed.
    """
    generate, lock, num_asked, released = stand_in.generate, threading.Lock(), [0], threading.Event()

    def held(body: dict[str, Any]) -> tuple[int, Any]:
        with lock:
            num_asked[0] += 1
            waits = num_asked[0] > count
        if waits:
            released.wait(300)
        return generate(body)

    stand_in.generate = held  # type: ignore[method-assign]
    return released.set


def report(options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(options["env"]["FAKE_VLLM_REPORT"]).read_text())
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def wait_until(is_so: Callable[[], bool], seconds: float = 300.0) -> bool:
    until = time.monotonic() + seconds
    while not is_so() and time.monotonic() < until:
        time.sleep(0.05)
    return is_so()


def train(folder: Path, options: dict[str, Any], **given: Any) -> Any:
    run = {"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all"}
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer=test_sampler_runs.GRPO, prompts=list(PROMPTS),
        reward_fn=toy_reward, gen={"max_new_tokens": 5}, loggers=[], sampler={"name": "vllm", **options}, run=run,
        **given,
    )  # fmt: skip


@pytest.mark.slow
def test_a_run_starts_its_server_and_ends_it(options: dict[str, Any], tmp_path: Path) -> None:
    result = train(tmp_path, {**options, "args": ["--enforce-eager"]})
    told = report(options)
    assert wait_until(lambda: not is_running(told["pid"]))
    for flag in ("--enable-scale-out", "--enable-prefix-caching", "processed_logprobs", "--enforce-eager", "float32"):
        assert flag in told["options"]
    assert told["options"][told["options"].index("--max-model-len") + 1] == "auto"
    assert "the stand-in is ready" in (result.run_dir / "vllm.log").read_text()
    assert not (result.run_dir / "vllm").exists()
    assert result.metrics["is/logprob_gap"] < 1e-5


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again_and_nothing_is_lost(options: dict[str, Any], tmp_path: Path) -> None:
    class Killer:
        def on_rollout(self, run: Any, batch: Any) -> None:
            if run.step == 0:
                os.kill(report(options)["pid"], signal.SIGKILL)

    whole = train(tmp_path / "whole", options)
    first = report(options)["pid"]
    killed = train(tmp_path / "killed", options, observers=[Killer()])
    assert report(options)["pid"] != first
    assert rollouts(killed) == rollouts(whole)
    assert all((one == other).all() for one, other in zip(weights(killed), weights(whole), strict=True))


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_samples_is_asked_again(
    stand_in: StandIn, options: dict[str, Any], tmp_path: Path
) -> None:
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options))
    policy, rows, killed = make_policy(), ROWS * 20, []

    def kill(done: list[int], _: Any) -> None:
        if not killed:
            killed.append(report(options)["pid"])
            os.kill(killed[0], signal.SIGKILL)
            release()

    try:
        whole = sampler(policy, rows, SAMPLING, row_seeds=list(range(40)))
        release = hold_after(stand_in, 4)
        again = sampler(
            policy, rows, SamplingConfig(max_new_tokens=5, batch_size=4), row_seeds=list(range(40)), on_batch=kill
        )
        assert again.action_tokens == whole.action_tokens
        assert report(options)["pid"] != killed[0]
    finally:
        sampler.close()


@pytest.mark.slow
def test_a_server_that_was_started_again_is_checked_before_its_samples_are_used(
    stand_in: StandIn, options: dict[str, Any], tmp_path: Path
) -> None:
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options))
    policy = make_policy()

    def kill(done: list[int], _: Any) -> None:
        if not stand_in.keeps_weights:
            stand_in.keeps_weights = True
            os.kill(report(options)["pid"], signal.SIGKILL)
            release()

    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2])
        release = hold_after(stand_in, 4)
        with pytest.raises(StaleWeights):
            sampler(
                policy, ROWS * 20, SamplingConfig(max_new_tokens=5, batch_size=4), row_seeds=list(range(40)),
                on_batch=kill,
            )  # fmt: skip
    finally:
        sampler.close()


def test_a_server_that_dies_again_and_again_ends_the_call(options: dict[str, Any], tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), restarts=0, **options))
    policy = make_policy()
    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2])
        os.kill(report(options)["pid"], signal.SIGKILL)
        with pytest.raises(EngineError, match=r"sampler.restarts is used up: .*the stand-in is ready"):
            sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2])
    finally:
        sampler.close()


def test_a_server_that_cannot_start_shows_its_last_words(options: dict[str, Any], tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), args=("--fail",), **options))
    with pytest.raises(EngineError, match="ended with code 1 before it answered: ValueError: no such device"):
        sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])
    sampler.close()


def test_a_python_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), python="/nowhere/python"))
    with pytest.raises(ConfigError, match=r"sampler.python = '/nowhere/python': is no program that can be started"):
        sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])


def test_after_close_a_server_is_started_anew(options: dict[str, Any], tmp_path: Path) -> None:
    sampler, policy = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options)), make_policy()
    found = []
    for _ in range(2):
        found.append(sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2]).action_tokens)
        sampler.close()
        sampler.close()
        assert wait_until(lambda: not is_running(report(options)["pid"]))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"continue_responses": True, "concurrency": 100, "check_rows": 3}, ["--max-num-seqs", "106"]),
        ({"transfer": "broadcast"}, ["--load-format", "dummy"]),
    ],
)
def test_a_server_is_started_for_the_options(
    given: dict[str, Any], arguments: list[str], options: dict[str, Any], stand_in: StandIn, tmp_path: Path
) -> None:
    """With room for the check of new weights beside responses under way, and without weights in files."""
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **given, **options))
    policy = make_policy()
    try:
        sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2])
    finally:
        sampler.close()
    told = report(options)["options"]
    assert told[(at := told.index(arguments[0])) : at + 2] == arguments
    found = stand_in.model.state_dict()
    assert all(torch.equal(found[name], value) for name, value in policy.weights())


def test_a_server_does_not_see_the_variables_of_a_launcher(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options))
    sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])
    sampler.close()
    told = report(options)
    assert told["RANK"] is None
    assert told["path"].startswith(str(tmp_path / "weights"))
    assert told["path"].endswith("/worker")


def test_folders_of_python_that_a_user_names_are_kept(options: dict[str, Any], tmp_path: Path) -> None:
    options["env"]["PYTHONPATH"] = str(tmp_path)
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options))
    sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])
    sampler.close()
    first, second = report(options)["path"].split(os.pathsep)
    assert first.endswith("/worker")
    assert second == str(tmp_path)


def test_a_server_of_something_else_on_the_port_is_not_given_weights(
    options: dict[str, Any], stand_in: StandIn, tmp_path: Path
) -> None:
    """Two runs on a machine may have been given the same free port."""
    sampler = VLLMSampler(VLLMConfig(weights_dir=str(tmp_path / "weights"), **options))
    stand_in.info["model"] = "/other/run/vllm/model"
    try:
        with pytest.raises(EngineError, match="a server of the model /other/run/vllm/model answers, and the run has"):
            sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])
    finally:
        sampler.close()
    assert stand_in.version == "default"
    assert "/update_weights" not in stand_in.calls


@pytest.mark.slow
def test_a_server_ends_with_a_run_that_is_killed(options: dict[str, Any], tmp_path: Path) -> None:
    """SIGKILL leaves a run no time to end anything: the process between it and the server notices."""
    script = tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {str(HERE)!r})
        from test_sampler_runs import make_policy
        from test_own_server import ROWS, SAMPLING
        from rlcore_engines.vllm.config import VLLMConfig
        from rlcore_engines.vllm.vllm_sampler import VLLMSampler
        sampler = VLLMSampler(VLLMConfig(weights_dir={str(tmp_path / "weights")!r}, **{options!r}))
        sampler(make_policy(), ROWS, SAMPLING, row_seeds=[1, 2])
        print("ready", flush=True)
        time.sleep(600)
        """)
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    pid = report(options)["pid"]
    assert is_running(pid)
    process.kill()
    process.wait()
    assert wait_until(lambda: not is_running(pid))
