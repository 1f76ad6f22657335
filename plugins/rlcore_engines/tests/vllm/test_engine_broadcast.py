"""Weights that are broadcast to a real vLLM on the CPU, by gloo: `make test-engines`."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from test_engine import ROWS, SAMPLING, SEEDS, TINY, largest_gap, make_policy, tiny_gpt2, tiny_llama, tiny_qwen3
from transformers import LlamaConfig, LlamaForCausalLM

from rlcore.types import Trajectories
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.fleet import Fleet
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.small import VOCABULARY

pytestmark = pytest.mark.engine


def sampled(sampler: VLLMSampler, policy: Any) -> Trajectories:
    """Return rows of the present weights, whose log-probs are the policy's."""
    batch = sampler(policy, ROWS, SAMPLING, row_seeds=SEEDS)
    gap = largest_gap(policy, batch)
    print(f"{type(policy.model).__name__}, version {policy.version}: gap {gap:.1e}", file=sys.stderr)
    assert gap < 1e-5
    return batch


def workers_of(guard: int) -> list[int]:
    """Return the processes that a guard has started, and theirs."""
    found = [int(pid) for pid in Path(f"/proc/{guard}/task/{guard}/children").read_text().split()]
    return [*found, *(each for pid in found for each in workers_of(pid))]


@pytest.mark.parametrize("make", [tiny_gpt2, tiny_llama, tiny_qwen3])
def test_log_probs_are_the_policys_after_every_broadcast_and_after_the_server_was_killed(
    make: Callable[[], Any], engine: dict[str, Any], tmp_path: Path
) -> None:
    """The server that was started again has random weights until it has joined anew."""
    config = VLLMConfig(weights_dir=str(tmp_path), transfer="broadcast", **engine)
    policy, sampler = make_policy(make), VLLMSampler(config)
    try:
        for _ in range(3):
            sampled(sampler, policy)
            perturb(policy)
        before = sampled(sampler, policy)
        assert not list(tmp_path.rglob("*.safetensors"))
        own = sampler._fleet._own
        assert own is not None
        assert own._process is not None
        for pid in workers_of(own._process.pid):
            os.kill(pid, signal.SIGKILL)
        assert sampled(sampler, policy).action_tokens == before.action_tokens
        assert own.restarts_left == engine.get("restarts", 3) - 1
        perturb(policy)
        sampled(sampler, policy)
    finally:
        sampler.close()


@contextmanager
def started(config: VLLMConfig, policy: Any) -> Iterator[Fleet]:
    """Start a server of a fleet of its own, as somebody would start one by hand."""
    fleet = Fleet(config)
    try:
        fleet.renew(policy)
        yield fleet
    finally:
        fleet.close()


def test_several_servers_receive_weights(engine: dict[str, Any], tmp_path: Path) -> None:
    """And one that dies and comes back, at the next change of the weights."""
    given = {**engine, "start_timeout_s": 300.0}
    tolerance = given.pop("tolerance")
    policy = make_policy(tiny_qwen3)
    with (
        started(VLLMConfig(weights_dir=str(tmp_path / "a"), **given), make_policy(tiny_qwen3)) as one,
        started(VLLMConfig(weights_dir=str(tmp_path / "b"), **given), make_policy(tiny_qwen3)) as other,
    ):
        urls = (one.servers[0].url, other.servers[0].url)
        config = VLLMConfig(url=urls, transfer="broadcast", tolerance=tolerance, weights_dir=str(tmp_path / "c"))
        sampler = VLLMSampler(config)
        try:
            for _ in range(2):
                perturb(policy)
                sampled(sampler, policy)
                versions = {server.version() for server in sampler._fleet.servers}
                assert versions == {sampler._fleet.version}
                assert len(sampler._fleet.servers) == 2
            own = other._own
            assert own is not None
            assert own._process is not None
            for pid in workers_of(own._process.pid):
                os.kill(pid, signal.SIGKILL)
            perturb(policy)
            sampled(sampler, policy)
            print("left after the kill:", *map(str, sampler._fleet.servers), file=sys.stderr)
            assert urls[0] in {server.url for server in sampler._fleet.servers}
            until = time.monotonic() + 300
            restarts = VLLMConfig().restarts  # one is used up once the end of the process has been noticed
            while (own.restarts_left == restarts or not own.is_ready.is_set()) and time.monotonic() < until:
                time.sleep(0.5)
            perturb(policy)
            sampled(sampler, policy)
            assert {server.url for server in sampler._fleet.servers} == set(urls)
        finally:
            sampler.close()


def wide_llama() -> LlamaForCausalLM:
    """Return a model of 108 MB."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 8}
    further = {"intermediate_size": 1536, "vocab_size": VOCABULARY, "max_position_embeddings": 64}
    return LlamaForCausalLM(LlamaConfig(**shape, **further, **{**TINY, "initializer_range": 0.02})).eval()


def test_how_long_new_weights_take(engine: dict[str, Any], tmp_path: Path) -> None:
    """A figure for the manual; both ways deliver the weights."""
    for transfer in ("files", "broadcast"):
        options = VLLMConfig(weights_dir=str(tmp_path / transfer), transfer=transfer, **engine)  # type: ignore[arg-type]
        policy, sampler = make_policy(wide_llama), VLLMSampler(options)
        seconds, own = list[float](), list[float]()
        num_bytes = sum(value.nbytes for _, value in policy.weights())
        try:
            sampled(sampler, policy)
            for _ in range(7):
                with torch.no_grad():
                    for weight in policy.module.parameters():
                        weight.mul_(0.999)
                policy.version += 1
                begun, cpu = time.perf_counter(), time.process_time()
                sampler._fleet.renew(policy)
                seconds.append(time.perf_counter() - begun)
                own.append(time.process_time() - cpu)
            sampled(sampler, policy)
        finally:
            sampler.close()
            shutil.rmtree(tmp_path / transfer, ignore_errors=True)
        print(
            f"{transfer}: {num_bytes / 1e6:.1f} MB in {statistics.median(seconds):.3f} s (median of 7; "
            f"{min(seconds):.3f} to {max(seconds):.3f}), {statistics.median(own):.3f} s of CPU of the run itself",
            file=sys.stderr,
        )
