"""Actors that each own a server of `rlcore_engines.vllm`; servers of that package's tests stand in for vLLM."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.sampling import derive_seeds
from rlcore.settings import SamplingConfig
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.ray_sampler import RaySampler
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.rig.sampler_calls import TEXTS, make_prompts
from rlcore_testing.small import PROMPTS, make_gpt2, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig

sys.path.append(str(THERE := Path(__file__).parents[1] / "vllm"))

from vllm_stand_in import StandIn

ROWS, SAMPLING = make_prompts(TEXTS * 2), SamplingConfig(max_new_tokens=5)
SEEDS = derive_seeds(3, range(len(ROWS)))
NUM_SERVERS = 3


class Servers:
    """Stand-ins for vLLM; every start of `python` takes the next one.

    Attributes:
        python: in place of a Python with vLLM.
        stand_ins: the servers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.stand_ins = folder, [StandIn() for _ in range(NUM_SERVERS)]
        lines = [
            f"if mkdir {folder}/taken-{i} 2>/dev/null; then export STAND_IN_PORT={each.url.rpartition(':')[2]} "
            f'FAKE_VLLM_REPORT={folder}/report-{i}.json; exec {sys.executable} -S {THERE}/fake_vllm.py "$@"; fi'
            for i, each in enumerate(self.stand_ins)
        ]
        self.python = folder / "python"
        self.python.write_text("\n".join(["#!/bin/sh", *lines, "echo 'ValueError: no server is left'", "exit 1", ""]))
        self.python.chmod(0o755)

    @property
    def options(self) -> dict[str, Any]:
        """Return the entry `engine`."""
        return {"name": "vllm", "python": str(self.python), "start_timeout_s": 120.0}

    def pids(self) -> list[int]:
        """Return the processes of the servers that have started."""
        return [json.loads(each.read_text())["pid"] for each in sorted(self.folder.glob("report-*.json"))]

    def num_asked(self) -> list[int]:
        """Return the number of completions of each server."""
        return [len(each.asked) for each in self.stand_ins]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    found = Servers(tmp_path)
    yield found
    for each in found.stand_ins:
        each.close()


def make_policy() -> Any:
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())


def directly(policy: Any) -> Any:
    """Return rows of the sampler `vllm` in this process."""
    server = StandIn()
    sampler = VLLMSampler(VLLMConfig(url=server.url))
    rows = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
    sampler.close()
    server.close()
    return rows


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for_end(pids: list[int]) -> None:
    until = time.monotonic() + 300
    while any(map(is_running, pids)):
        assert time.monotonic() < until
        time.sleep(0.1)


def assert_equal(one: Any, other: Any) -> None:
    assert one.columns.keys() == other.columns.keys()
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.mask, other.mask)
    assert float((one["logprobs"] - other["logprobs"]).abs().max()) < 1e-6


@pytest.mark.slow
def test_actors_start_a_server_each_and_sample_with_the_weights_of_the_policy(no_ray: Any, servers: Servers) -> None:
    policy = make_policy()
    sampler = RaySampler(structure(RayConfig, {"num_actors": 2, "engine": servers.options}))
    assert (sampler.draws_from_policy, sampler.exact_logprobs) == (True, False)
    first = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
    assert_equal(first, directly(policy))
    perturb(policy)
    second = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
    assert_equal(second, directly(policy))
    assert not torch.equal(second.tokens, first.tokens)
    asked, pids = servers.num_asked(), servers.pids()
    assert min(asked[:2]) > len(ROWS) / 2  # both, in both rounds
    assert asked[2] == 0
    sampler.close()
    wait_for_end(pids)


@pytest.mark.slow
def test_a_run_learns_from_actors_with_servers(no_ray: Any, servers: Servers, tmp_path: Path) -> None:
    result = rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward, loggers=[],
        trainer={"name": "grpo", "rollouts": 8, "num_generations": 4, "optimizer": {"lr": 1e-2}},
        gen={"max_new_tokens": 5}, sampler={"name": "ray", "num_actors": 2, "engine": servers.options},
        run={"root": str(tmp_path), "name": "run", "steps": 3, "report": False},
    )  # fmt: skip
    gaps = [json.loads(line).get("is/logprob_gap") for line in (result.run_dir / "metrics.jsonl").open()]
    assert len([gap for gap in gaps if gap is not None and gap < 1e-5]) == 3
    wait_for_end(servers.pids())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (
            {"engine": {"name": "vllm", "url": "http://here"}},
            "engine.url = 'http://here': every actor has other weights",
        ),
        ({"engine": {"name": "vllm", "python": "x", "sleep": True}}, "engine.sleep = True: actors do not see"),
        ({"engine": {"python": "x"}}, "engine.name = None: must be the name of another sampler, such as vllm"),
        ({"engine": {"name": "ray"}}, "engine.name = 'ray': must be the name of another sampler"),
        ({"engine": {"name": "vllm", "python": "x"}, "min_p": 0.1}, "min_p: stands beside engine"),
    ],
)
def test_options_that_actors_cannot_follow_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        structure(RayConfig, options)


def test_a_wrong_option_of_the_engine_is_found_before_ray_starts(no_ray: Any) -> None:
    with pytest.raises(ConfigError, match=r"sampler\.engine\.pyton: no such option; did you mean 'python'"):
        RaySampler(structure(RayConfig, {"engine": {"name": "vllm", "pyton": "x"}}))


def test_a_run_with_options_that_its_engine_lacks_is_refused_at_its_start(no_ray: Any, servers: Servers) -> None:
    with pytest.raises(rlcore.errors.RLCoreError, match="logit_mask"):
        rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward, loggers=[],
            trainer={"name": "grpo", "rollouts": 8, "num_generations": 4}, gen={"max_new_tokens": 5},
            logit_mask=torch.ones(8, 8, dtype=torch.bool), sampler={"name": "ray", "engine": servers.options},
        )  # fmt: skip
    assert not servers.pids()


def test_actors_with_an_engine_are_refused_in_asynchronous_runs(no_ray: Any, servers: Servers, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampler\.engine with run\.asynchronous = 1: each round would start"):
        rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), prompts=list(PROMPTS), reward_fn=toy_reward, loggers=[],
            trainer={"name": "grpo", "rollouts": 8, "num_generations": 4}, gen={"max_new_tokens": 5},
            sampler={"name": "ray", "engine": servers.options},
            run={"root": str(tmp_path), "name": "run", "steps": 1, "report": False, "asynchronous": 1},
        )  # fmt: skip
    assert not servers.pids()
    assert not (tmp_path / "run").exists()


@pytest.mark.nightly
def test_an_actor_that_is_killed_is_replaced_with_a_server_of_its_own(ray_address: str, servers: Servers) -> None:
    import ray

    options = {"num_actors": 2, "num_cpus": 0.5, "rows": 2, "address": ray_address, "engine": servers.options}
    sampler, policy, killed = RaySampler(structure(RayConfig, options)), make_policy(), list[int]()
    expected = directly(policy)
    assert_equal(sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS), expected)
    pids, before = ray.get([each.ready.remote() for each in sampler._crew.workers]), servers.pids()

    def kill(*_: Any) -> None:
        if not killed:
            killed.append(pids[1])
            os.kill(pids[1], signal.SIGKILL)

    assert_equal(sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS, on_batch=kill), expected)
    ray.get([each.ready.options(max_task_retries=-1).remote() for each in sampler._crew.workers])
    until = time.monotonic() + 120
    while not (asked := servers.num_asked())[2] and time.monotonic() < until:
        assert_equal(sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS), expected)
    assert asked[2] > 0
    assert len(servers.pids()) == NUM_SERVERS
    assert len([pid for pid in before if is_running(pid)]) == 1  # that of the killed actor ended with it
    sampler.close()
    wait_for_end(servers.pids())


@pytest.mark.engine
@pytest.mark.parametrize("transfer", ["files", "broadcast"])
def test_a_run_learns_from_an_actor_with_a_real_engine(
    transfer: str, ray_address: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if "engine" not in str(request.config.option.markexpr):
        pytest.skip("installs a serving engine: make test-engines")
    import vllm_environment
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    sizes = {"vocab_size": len(tokenizer), "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=tokenizer.eos_token_id))
    engine = {
        "name": "vllm", "python": vllm_environment.python(), "args": ["--enforce-eager"], "tolerance": 1e-5,
        "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
        "transfer": transfer,
    }  # fmt: skip
    result = rlcore.train(
        model, tokenizer=tokenizer, prompts=list(PROMPTS), reward_fn=toy_reward, loggers=[],
        trainer={"name": "grpo", "rollouts": 16, "num_generations": 4, "optimizer": {"lr": 1e-2}},
        gen={"max_new_tokens": 5}, run={"root": str(tmp_path), "name": "run", "steps": 8, "report": False},
        sampler={"name": "ray", "num_actors": 1, "address": ray_address, "engine": engine},
    )  # fmt: skip
    rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").open()]
    gaps = [row["is/logprob_gap"] for row in rows if "is/logprob_gap" in row]
    print(f"{transfer}: gap at most {max(gaps):.1e}", file=sys.stderr)
    assert len(gaps) == 8
    assert max(gaps) < 1e-5
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert rewards[-1] > rewards[0] + 0.3
