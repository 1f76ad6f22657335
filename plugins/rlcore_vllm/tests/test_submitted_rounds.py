"""Rounds that are submitted to a server and collected later, and runs that sample ahead (`run.asynchronous`)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler_runs import GRPO, PPO, make_policy, rollouts, train, weights
from vllm_stand_in import StandIn

import rlcore
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward
from rlcore_vllm.config import VLLMConfig
from rlcore_vllm.errors import StaleWeights
from rlcore_vllm.vllm_sampler import VLLMSampler

CORRECTED = {**GRPO, "is_correction": "token_truncate"}
ROWS = [Prompt("ab", (0, 1)), Prompt("c", (2,)), Prompt("def", (3, 4, 5))]
SAMPLING = SamplingConfig(max_new_tokens=5)


def make_sampler(stand_in: StandIn, folder: Path) -> VLLMSampler:
    return VLLMSampler(VLLMConfig(url=stand_in.url, weights_dir=str(folder / "weights")))


def change(policy: Any, factor: float) -> None:
    with torch.no_grad():
        for parameter in policy.module.parameters():
            parameter.mul_(factor)
    policy.version += 1


def watch(stand_in: StandIn) -> list[int]:
    """Return a list of the numbers of completions under way when weights are changed."""
    running, seen, post, lock = [0], list[int](), stand_in.post, threading.Lock()

    def counted(path: str, body: Any) -> Any:
        if path == "/update_weights":
            seen.append(running[0])
        if path != "/inference/v1/generate":
            return post(path, body)
        with lock:
            running[0] += 1
        try:
            return post(path, body)
        finally:
            with lock:
                running[0] -= 1

    stand_in.post = counted  # type: ignore[method-assign]
    return seen


def test_what_was_submitted_is_sampled_from_the_weights_of_then(stand_in: StandIn, tmp_path: Path) -> None:
    sampler, policy = make_sampler(stand_in, tmp_path), make_policy()
    whole = sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    handles = [sampler.submit(policy, ROWS, SAMPLING, row_seeds=seeds) for seeds in ([1, 2, 3], [4, 5, 6])]
    change(policy, 1.5)
    first, second = map(sampler.collect, handles)
    assert first.action_tokens == whole.action_tokens
    assert torch.equal(first["logprobs"], whole["logprobs"])
    assert second.action_tokens != first.action_tokens
    now = sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    assert not torch.equal(now["logprobs"], first["logprobs"])


def test_a_server_that_lost_its_weights_while_rows_were_under_way_is_noticed(stand_in: StandIn, tmp_path: Path) -> None:
    """It is given them again; if they do not arrive, though it says so, the rows are not used."""
    sampler, policy = make_sampler(stand_in, tmp_path), make_policy()
    whole = sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    stand_in.post("/restart", None)
    again = sampler.submit(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    change(policy, 1.5)
    assert sampler.collect(again).action_tokens == whole.action_tokens
    change(policy, 1 / 1.5)
    sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    stand_in.post("/restart", None)
    stand_in.keeps_weights = True
    lost = sampler.submit(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    change(policy, 1.5)
    with pytest.raises(StaleWeights, match="it still has old weights"):
        sampler.collect(lost)


@pytest.mark.parametrize("trainer", [CORRECTED, {**PPO, "is_correction": "token_truncate"}], ids=["grpo", "ppo"])
def test_weights_change_between_requests_only(trainer: dict[str, Any], stand_in: StandIn, tmp_path: Path) -> None:
    running = watch(stand_in)
    result = train(stand_in.url, tmp_path, trainer=trainer, run={"steps": 4, "asynchronous": 1})
    assert running == [0] * 5  # before the first step, after each, and before the last evaluation
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["age/max"] for line in lines if "age/max" in line] == [0.0, 1.0, 1.0, 1.0]
    gaps = [line["is/logprob_gap"] for line in lines if "is/logprob_gap" in line]
    assert gaps[0] < 1e-5 < min(gaps[1:])  # the policy has learned since, in steps of lr 1e-2


def test_resuming_equals_not_having_stopped(stand_in: StandIn, tmp_path: Path) -> None:
    ahead = {"asynchronous": 1}
    whole = train(stand_in.url, tmp_path / "whole", trainer=CORRECTED, run={"steps": 4, **ahead})
    train(stand_in.url, tmp_path / "parts", trainer=CORRECTED, run={"steps": 2, **ahead})
    parts = train(stand_in.url, tmp_path / "parts", trainer=CORRECTED, run={"steps": 4, "resume": "auto", **ahead})
    assert rollouts(parts) == rollouts(whole)
    assert all(map(torch.equal, weights(parts), weights(whole)))


def test_a_server_that_fails_changes_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    whole = train(stand_in.url, tmp_path / "whole", trainer=CORRECTED, run={"asynchronous": 1})
    stand_in.faults.extend(["", "", "", "", "dies", "", "aborted", "fails", ""])
    other = train(stand_in.url, tmp_path / "other", trainer=CORRECTED, run={"asynchronous": 1})
    assert rollouts(other) == rollouts(whole)
    assert all(map(torch.equal, weights(other), weights(whole)))


def trained(url: str, folder: str) -> dict[str, Any]:
    """Train in this process, one of one or two."""
    result = rlcore.train(
        make_llama(), tokenizer=make_tokenizer(), trainer=CORRECTED, prompts=list(PROMPTS), reward_fn=toy_reward,
        gen={"max_new_tokens": 5}, loggers=[], sampler={"name": "vllm", "url": url},
        run={"root": folder, "name": "run", "steps": 3, "report": False, "rollouts": "all", "asynchronous": 1},
    )  # fmt: skip
    return {"rows": rollouts(result) if result.run.ranks.is_main else []}


@pytest.mark.slow
def test_two_processes_share_a_server(stand_in: StandIn, tmp_path: Path) -> None:
    """No process changes the weights while the other's rows are under way."""
    running, found = watch(stand_in), {}
    for name, call in (("one", call_in_new_process), ("two", call_on_two_ranks)):
        arguments = {"url": stand_in.url, "folder": str(tmp_path / name)}
        found[name] = call("test_submitted_rounds:trained", arguments, what=name)
    assert found["one"] == found["two"]
    assert not any(running)
