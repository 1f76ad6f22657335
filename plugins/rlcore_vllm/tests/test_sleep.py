"""Servers that sleep while the policy learns (`sampler.sleep`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler_runs import GRPO, PPO, rollouts, train, weights
from vllm_stand_in import StandIn

import rlcore
from rlcore.errors import ConfigError
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward


def sleeping(stand_in: StandIn) -> dict[str, Any]:
    stand_in.info["enable_sleep_mode"] = True
    return {"name": "vllm", "url": stand_in.url, "sleep": True}


@pytest.mark.parametrize("trainer", [GRPO, PPO], ids=["grpo", "ppo"])
def test_a_server_sleeps_from_its_last_response_to_the_next_prompts(
    trainer: dict[str, Any], stand_in: StandIn, tmp_path: Path
) -> None:
    """It wakes before it receives the new weights; the run is the same."""
    whole = train(stand_in.url, tmp_path / "awake", trainer=trainer)
    stand_in.calls.clear()
    slept = train(stand_in.url, tmp_path / "asleep", trainer=trainer, sampler=sleeping(stand_in))
    assert rollouts(slept) == rollouts(whole)
    assert all(map(torch.equal, weights(slept), weights(whole)))
    update = [
        "/init_weight_transfer_engine", "/pause?mode=keep", "/start_weight_update", "/update_weights",
        "/finish_weight_update", "/resume", "/reset_prefix_cache",
    ]  # fmt: skip
    rest, wake = "/sleep?level=1&mode=wait", ["/wake_up"]
    assert stand_in.calls == [
        *update,
        rest,
        *wake,
        *update,
        rest,
        *wake,
        *update,
    ]  # the last: the evaluation at the end


def test_evaluations_between_rounds_wake_a_server(stand_in: StandIn, tmp_path: Path) -> None:
    result = train(
        stand_in.url, tmp_path, sampler=sleeping(stand_in), eval_prompts=list(PROMPTS[:2]), eval={"every": 1},
        run={"steps": 2},
    )  # fmt: skip
    assert "eval/reward/mean" in result.metrics
    assert stand_in.calls.count("/sleep?level=1&mode=wait") == 2
    assert not stand_in.is_asleep  # the last evaluation follows the last round


def test_a_server_that_cannot_sleep_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it cannot sleep"):
        train(stand_in.url, tmp_path, sampler={"name": "vllm", "url": stand_in.url, "sleep": True})


def test_servers_that_sample_ahead_do_not_sleep(stand_in: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampler.sleep with run.asynchronous = 1"):
        train(stand_in.url, tmp_path, sampler=sleeping(stand_in), run={"asynchronous": 1})


def trained(url: str, folder: str) -> dict[str, Any]:
    """Train in this process, one of two, and evaluate after each step."""
    result = rlcore.train(
        make_llama(), tokenizer=make_tokenizer(), trainer=GRPO, prompts=list(PROMPTS), reward_fn=toy_reward,
        eval_prompts=list(PROMPTS), eval={"every": 1}, gen={"max_new_tokens": 5}, loggers=[],
        sampler={"name": "vllm", "url": url, "sleep": True},
        run={"root": folder, "name": "run", "steps": 2, "report": False, "rollouts": "all"},
    )  # fmt: skip
    return {"rows": rollouts(result) if result.run.ranks.is_main else []}


@pytest.mark.slow
def test_no_process_asks_a_server_that_sleeps(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.info["enable_sleep_mode"] = True
    found = call_on_two_ranks("test_sleep:trained", {"url": stand_in.url, "folder": str(tmp_path)}, what="two")
    assert len(found["rows"]) == 16
    assert stand_in.calls.count("/sleep?level=1&mode=wait") == stand_in.calls.count("/wake_up") == 2
