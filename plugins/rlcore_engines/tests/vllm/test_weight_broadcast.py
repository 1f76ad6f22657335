"""Weights that are sent to servers without files (`sampler.transfer: broadcast`)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from test_new_weights import PROMPTS, SAMPLING, SEEDS, make_policy
from test_sampler_runs import rollouts, train, weights
from vllm_stand_in import StandIn

from rlcore_engines.vllm import fleet, weight_group
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_engines.vllm.weight_group import WeightGroup, pack, plan
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.rig.policies import perturb


@pytest.fixture
def other() -> Iterator[StandIn]:
    server = StandIn()
    yield server
    server.close()


def broadcasting(*servers: StandIn, **options: Any) -> dict[str, Any]:
    return {"url": tuple(each.url for each in servers), "transfer": "broadcast", "start_timeout_s": 300.0, **options}


def holds(stand_in: StandIn, policy: Any) -> bool:
    """Return whether a server has the policy's present weights."""
    found = stand_in.model.state_dict()
    return all(torch.equal(found[name], value) for name, value in policy.weights())


def test_tensors_of_any_dtype_come_out_of_buckets_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "one": torch.rand(3, 5, generator=generator).bfloat16(),
        "flag": torch.tensor([True, False, True]),
        "scalar": torch.tensor(3.25, dtype=torch.float64),
        "large": torch.rand(40, generator=generator),
        "turned": torch.rand(4, 6, generator=generator).t(),
        "last": torch.arange(5),
    }
    buckets = plan(tensors, limit=128)
    assert [[name for name, *_ in bucket] for bucket in buckets] == [
        ["one", "flag", "scalar"],  # 32 + 16 + 16 bytes, and 160 more would be too many
        ["large"],
        ["turned"],  # 96 bytes; 40 more would be too many
        ["last"],
    ]
    found = {}
    for bucket in buckets:
        found |= dict(weight_group._places(bucket, pack(bucket, tensors, torch.device("cpu"))))
    for name, value in tensors.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)


@pytest.mark.slow
def test_a_run_is_the_same_as_with_files(
    stand_in: StandIn, other: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any number of buckets; and nothing but the configuration is written."""
    filed = train(stand_in.url, tmp_path / "files", run={"steps": 3})
    monkeypatch.setattr(fleet, "plan", partial(plan, limit=2000))
    sampler = {"name": "vllm", **broadcasting(stand_in, other), "weights_dir": str(tmp_path / "weights")}
    written = list[str]()

    class Looking:
        def on_rollout(self, run: Any, batch: Any) -> None:
            written.extend(file.name for file in (tmp_path / "weights").rglob("*") if file.is_file())

    sent = train("", tmp_path / "broadcast", run={"steps": 3}, sampler=sampler, observers=[Looking()])
    assert rollouts(sent) == rollouts(filed)
    assert all(map(torch.equal, weights(sent), weights(filed)))
    assert "config.json" in written
    assert not [name for name in written if name.endswith(".safetensors")]
    assert holds(stand_in, sent.policy)
    assert holds(other, sent.policy)


@pytest.mark.slow
def test_a_server_that_was_started_again_joins_anew_and_receives_the_weights_of_the_round(
    stand_in: StandIn, other: StandIn
) -> None:
    """They are those that the others have, though the policy has learned since."""
    policy, sampler = make_policy(), VLLMSampler(VLLMConfig(**broadcasting(stand_in, other)))
    try:
        whole = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        sent = {name: value.clone() for name, value in policy.weights()}
        with torch.no_grad():
            next(policy.module.parameters()).add_(1.0)  # of a step that is under way
        stand_in.post("/restart", None)
        (server, _) = sampler._fleet.servers
        sampler._fleet.recover(server)
        assert all(torch.equal(stand_in.model.state_dict()[name], value) for name, value in sent.items())
        again = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert again.action_tokens == whole.action_tokens
        perturb(policy)
        sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert holds(stand_in, policy)
        assert holds(other, policy)
    finally:
        sampler.close()


def test_a_server_that_dies_while_it_receives_is_left_out(
    stand_in: StandIn, other: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "plan", partial(plan, limit=2000))
    policy, sampler = make_policy(), VLLMSampler(VLLMConfig(**broadcasting(stand_in, other)))

    def die(group: WeightGroup) -> None:
        group.close()
        stand_in.get = lambda _: (500, "")  # type: ignore[method-assign]
        stand_in.post = lambda *_: (0, None)  # type: ignore[method-assign]
        raise ConnectionResetError

    try:
        sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        perturb(policy)
        stand_in.before_bucket = die
        sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert [server.url for server in sampler._fleet.servers] == [other.url]
        assert holds(other, policy)
    finally:
        sampler.close()


def test_an_error_of_the_engine_ends_the_run_without_a_delay(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run would wait for workers that no longer receive."""
    monkeypatch.setattr(fleet, "plan", partial(plan, limit=2000))
    policy, sampler = make_policy(), VLLMSampler(VLLMConfig(**broadcasting(stand_in)))

    def refuse(_: WeightGroup) -> None:
        raise ValueError("another model")

    stand_in.before_bucket, begun = refuse, time.monotonic()
    try:
        with pytest.raises(EngineError, match="it fails: another model"):
            sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        assert time.monotonic() - begun < 10.0
    finally:
        sampler.close()


@pytest.mark.slow
def test_divided_weights_are_gathered_and_sent_by_process_0(stand_in: StandIn, tmp_path: Path) -> None:
    """An adapter is merged on the way, as in one process that writes files."""
    given = {"url": stand_in.url, "folder": str(tmp_path / "one")}
    one = call_in_new_process("test_sampler_runs:trained", given, what="one")
    given = {"url": stand_in.url, "folder": str(tmp_path / "two"), "transfer": "broadcast", "shard": "fsdp"}
    two = call_on_two_ranks("test_sampler_runs:trained", given, what="two")
    assert two["rows"] == one["rows"] != []
    for mine, other in zip(one["weights"], two["weights"], strict=True):
        assert other == pytest.approx(mine, abs=1e-5)
