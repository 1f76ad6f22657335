"""Servers that come back, that a killed run has left in the middle of an update, or that two runs use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from small_sampler import PROMPTS, SAMPLING, SEEDS, make_policy, sampler_of
from vllm_stand_in import StandIn

from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.policies import perturb
from rlcore_testing.small import make_gpt2


def test_a_server_that_was_started_anew_elsewhere_is_given_the_weights_again(stand_in: StandIn, tmp_path: Path) -> None:
    policy, sampler = make_policy(), sampler_of(stand_in, tmp_path)
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    stand_in.version, stand_in.model = "default", make_gpt2(seed=7)
    stand_in._logits.clear()
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert after.action_tokens == before.action_tokens
    assert torch.equal(after["logprobs"], before["logprobs"])


def test_a_server_that_is_gone_when_weights_change_is_left_out(stand_in: StandIn, tmp_path: Path) -> None:
    gone, policy = StandIn(), make_policy()
    options: dict[str, Any] = {"url": (gone.url, stand_in.url), "weights_dir": str(tmp_path), "start_timeout_s": 5.0}
    sampler = VLLMSampler(VLLMConfig(**options))
    sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    gone.close()
    perturb(policy)
    batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    with torch.no_grad():
        own = policy.score(batch).logprobs
    assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


def test_a_run_waits_for_its_only_server_to_come_back(tmp_path: Path) -> None:
    first, policy = StandIn(), make_policy()
    sampler = VLLMSampler(VLLMConfig(url=first.url, weights_dir=str(tmp_path), start_timeout_s=300.0))
    before = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    port = int(first.url.rpartition(":")[2])
    first.close()
    later = threading.Timer(0.5, lambda: servers.append(StandIn(port)))
    servers: list[StandIn] = []
    later.start()
    policy.version += 1
    after = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    later.join()
    servers[0].close()
    assert after.action_tokens == before.action_tokens


def test_an_update_that_fails_is_an_error_and_is_not_finished(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    post = stand_in.post

    def failing(path: str, body: Any) -> tuple[int, Any]:
        return (500, {"error": {"message": "no such file"}}) if path == "/update_weights" else post(path, body)

    monkeypatch.setattr(stand_in, "post", failing)
    with pytest.raises(EngineError, match="new weights could not be loaded: /update_weights: status 500, no such file"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert "/finish_weight_update" not in stand_in.calls


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_server_whose_last_run_was_killed_within_an_update_takes_new_weights(
    is_loaded: bool, stand_in: StandIn, tmp_path: Path
) -> None:
    """It is paused, and refuses to begin an update before that one is finished; its version stays till then."""
    policy, killed = make_policy(), sampler_of(stand_in, tmp_path / "killed")
    whole = killed(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    (server,), before = killed._fleet.servers, stand_in.version
    path = killed._fleet._files.place / "model"

    def die() -> None:
        if is_loaded:
            server.update({"path": str(path)})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        server.load("never", die)
    assert stand_in._paused
    assert stand_in._is_updating
    assert stand_in.version == before
    batch = sampler_of(stand_in, tmp_path / "next")(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert batch.action_tokens == whole.action_tokens
    assert stand_in.version not in (before, "never")


@pytest.mark.slow
def test_two_runs_that_use_one_server_in_turn_sample_from_their_own_weights(stand_in: StandIn, tmp_path: Path) -> None:
    policies = [make_policy(), make_policy()]
    perturb(policies[1])
    samplers = [sampler_of(stand_in, tmp_path / name) for name in "ab"]
    for policy, sampler in [*zip(policies, samplers, strict=True)] * 2:
        batch = sampler(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)
        with torch.no_grad():
            own = policy.score(batch).logprobs
        assert torch.allclose(batch["logprobs"][batch.action_mask], own[batch.action_mask], atol=1e-5)


@pytest.mark.slow
def test_two_runs_that_use_one_server_at_a_time_end_with_the_reason(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = sampler_of(stand_in, tmp_path)
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)

    def replace(_body: Any, _count: int) -> None:
        stand_in.version = "0123abcd-1-7"

    stand_in.before_token = replace
    with pytest.raises(EngineError, match="those are of another run: use each server in one run at a time"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
