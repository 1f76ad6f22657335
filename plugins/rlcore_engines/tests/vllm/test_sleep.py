"""Servers that sleep while the policy learns (`sampler.sleep`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from test_sampler_runs import GRPO, PPO, make_policy, rollouts, train, weights
from vllm_stand_in import StandIn

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig, TrainConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward

ROWS = [Prompt("ab", (0, 1))]


def sleeping(stand_in: StandIn) -> dict[str, Any]:
    stand_in.info["enable_sleep_mode"] = True
    return {"name": "vllm", "url": stand_in.url, "sleep": True}


@pytest.mark.slow
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
        rest,
    ]  # the last update: the evaluation at the end


def test_evaluations_between_rounds_wake_a_server_until_they_end(stand_in: StandIn, tmp_path: Path) -> None:
    result = train(
        stand_in.url, tmp_path, sampler=sleeping(stand_in), eval_prompts=list(PROMPTS[:2]), eval={"every": 1},
        run={"steps": 2},
    )  # fmt: skip
    assert "eval/reward/mean" in result.metrics
    assert stand_in.calls.count("/sleep?level=1&mode=wait") == 4
    assert stand_in.calls.count("/wake_up") == 3
    assert stand_in.is_asleep


@pytest.mark.slow
def test_a_server_that_a_killed_run_left_asleep_is_woken(stand_in: StandIn, tmp_path: Path) -> None:
    """Also by a run whose servers do not sleep."""
    whole = train(stand_in.url, tmp_path / "awake")
    for name, sampler in (("sleeps", sleeping(stand_in)), ("stays", {"name": "vllm", "url": stand_in.url})):
        stand_in.is_asleep = True
        assert rollouts(train(stand_in.url, tmp_path / name, sampler=sampler)) == rollouts(whole)


class Ranks:
    """One of two processes, which are threads here."""

    def __init__(self, number: int, barrier: threading.Barrier) -> None:
        self.is_main, self.mixed_precision, self.wait, self.world = number == 0, "no", barrier.wait, 2

    def broadcast(self, value: Any) -> Any:
        return "token", 0

    def on_main(self, call: Callable[[], object]) -> None:
        call()


def test_a_process_waits_until_the_servers_sleep_though_its_weights_are_the_same(
    stand_in: StandIn, tmp_path: Path
) -> None:
    """It would find them awake otherwise, and ask servers that process 0 is about to put to sleep."""
    barrier, post, seen = threading.Barrier(2), stand_in.post, list[str]()
    stand_in.info["enable_sleep_mode"] = True

    def slowly(path: str, body: Any) -> tuple[int, Any]:
        if path.startswith("/sleep"):
            seen.append("falls asleep")
            time.sleep(0.3)
        reply = post(path, body)
        seen.append({"/wake_up": "awake", "/inference/v1/generate": "asked"}.get(path, path.partition("?")[0]))
        return reply

    stand_in.post = slowly  # type: ignore[method-assign]
    config = structure(TrainConfig, {})
    policies, errors = [make_policy(), make_policy()], list[BaseException]()

    def process(number: int) -> None:
        try:
            sampler = VLLMSampler(VLLMConfig(url=stand_in.url, sleep=True, check_rows=0, start_timeout_s=300.0))
            run: Any = SimpleNamespace(config=config, dir=tmp_path, ranks=Ranks(number, barrier))
            sampler.open(run)
            for _ in range(3):
                sampler(policies[number], ROWS, SamplingConfig(max_new_tokens=4), row_seeds=[number])
                sampler.on_rollout(run)
        except BaseException as error:
            barrier.abort()
            errors.append(error)
            raise

    threads = [threading.Thread(target=process, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    rounds = seen[seen.index("falls asleep") :]
    assert rounds == 2 * ["falls asleep", "/sleep", "awake", "asked", "asked"] + ["falls asleep", "/sleep"]


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
    assert stand_in.calls.count("/sleep?level=1&mode=wait") == 4
    assert stand_in.calls.count("/wake_up") == 3
