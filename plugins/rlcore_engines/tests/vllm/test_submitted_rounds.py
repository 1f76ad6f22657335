"""Rounds that are submitted to a server and collected later, and runs that sample ahead (`run.asynchronous`)."""

from __future__ import annotations

import copy
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_sampler_runs import GRPO, PPO, make_policy, rollouts, train, weights
from vllm_stand_in import StandIn

import rlcore
from rlcore.errors import ConfigError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError, StaleWeights
from rlcore_engines.vllm.generation import Completion, OldWeights, read_answer
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward

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


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [CORRECTED, {**PPO, "is_correction": "token_truncate"}], ids=["grpo", "ppo"])
def test_weights_change_between_requests_only(trainer: dict[str, Any], stand_in: StandIn, tmp_path: Path) -> None:
    running = watch(stand_in)
    result = train(stand_in.url, tmp_path, trainer=trainer, run={"steps": 4, "asynchronous": 1})
    assert running == [0] * 5  # before the first step, after each, and before the last evaluation
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [line["age/max"] for line in lines if "age/max" in line] == [0.0, 1.0, 1.0, 1.0]
    gaps = [line["is/logprob_gap"] for line in lines if "is/logprob_gap" in line]
    assert gaps[0] < 1e-5 < min(gaps[1:])  # the policy has learned since, in steps of lr 1e-2


@pytest.mark.slow
def test_resuming_equals_not_having_stopped(stand_in: StandIn, tmp_path: Path) -> None:
    ahead = {"asynchronous": 1}
    whole = train(stand_in.url, tmp_path / "whole", trainer=CORRECTED, run={"steps": 4, **ahead})
    train(stand_in.url, tmp_path / "parts", trainer=CORRECTED, run={"steps": 2, **ahead})
    parts = train(stand_in.url, tmp_path / "parts", trainer=CORRECTED, run={"steps": 4, "resume": "auto", **ahead})
    assert rollouts(parts) == rollouts(whole)
    assert all(map(torch.equal, weights(parts), weights(whole)))


@pytest.mark.slow
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


@pytest.mark.nightly
def test_two_processes_share_a_server(stand_in: StandIn, tmp_path: Path) -> None:
    """No process changes the weights while the other's rows are under way."""
    running, found = watch(stand_in), {}
    for name, call in (("one", call_in_new_process), ("two", call_on_two_ranks)):
        arguments = {"url": stand_in.url, "folder": str(tmp_path / name)}
        found[name] = call("test_submitted_rounds:trained", arguments, what=name)
    assert found["one"] == found["two"]
    assert not any(running)


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not is_true() and time.monotonic() < until:
        time.sleep(0.01)


def make_continuing(stand_in: StandIn, folder: Path) -> VLLMSampler:
    config = VLLMConfig(url=stand_in.url, weights_dir=str(folder / "weights"), continue_responses=True)
    return VLLMSampler(config)


def unseeded(stand_in: StandIn) -> list[dict[str, Any]]:
    """Return the requests of submitted rounds so far; the others have seeds."""
    return [body for body in stand_in.asked if "seed" not in body["sampling_params"]]


def hold(stand_in: StandIn, first: int, after: int) -> threading.Event:
    """Hold the first submitted responses after some tokens, until the event that is returned is set."""
    released = threading.Event()

    def wait(body: dict[str, Any], count: int) -> None:
        if count == after and any(body is each for each in unseeded(stand_in)[:first]):
            released.wait(300)

    stand_in.before_token = wait
    return released


def test_responses_under_way_go_on_with_new_weights_if_asked(stand_in: StandIn, tmp_path: Path) -> None:
    """Each token has the version and the log-prob of the weights that sampled it."""
    sampler, policy = make_continuing(stand_in, tmp_path), make_policy()
    released = hold(stand_in, len(ROWS), after=2)
    first = sampler.submit(policy, ROWS, SAMPLING, row_seeds=[11, 12, 13])
    wait_until(lambda: len(unseeded(stand_in)) == len(ROWS))
    before = copy.deepcopy(policy)
    change(policy, 1.5)
    second = sampler.submit(policy, ROWS, SAMPLING, row_seeds=[4, 5, 6])
    later = sampler.collect(second)
    assert set(later["token_versions"][later.action_mask].tolist()) == {policy.version}
    released.set()
    rows = sampler.collect(first)
    old, new = before.version, policy.version
    assert [row[mask].tolist() for row, mask in zip(rows["token_versions"], rows.action_mask, strict=True)] == [
        ([old] * 2 + [new] * 3)[:count] for count in rows.num_actions.tolist()
    ]
    with torch.no_grad():
        by_old, by_new = before.score(rows).logprobs, policy.score(rows).logprobs
    expected = torch.where(rows["token_versions"] == new, by_new, by_old)
    assert torch.allclose(rows["logprobs"][rows.action_mask], expected[rows.action_mask], atol=1e-5)
    assert (by_old - by_new)[rows.action_mask].abs().min() > 1e-3


def test_states_of_earlier_weights_are_dropped_before_responses_go_on(stand_in: StandIn, tmp_path: Path) -> None:
    sampler, policy = make_continuing(stand_in, tmp_path), make_policy()
    sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
    drop = stand_in.calls.index("/reset_prefix_cache?reset_running_requests=true")
    assert stand_in.calls.index("/finish_weight_update") < drop < stand_in.calls.index("/resume")
    assert "/reset_prefix_cache" not in stand_in.calls  # which waits until no response is under way


@pytest.mark.parametrize("used", [["x-1-3"], ["x-1-5", "x-1-4"], ["y-1-5"], ["x-1-4", "default"]], ids=str)
def test_tokens_of_earlier_or_foreign_weights_are_never_taken(used: list[str]) -> None:
    """The response was asked for at version 4."""
    asked = Completion((1,), 2, 7, SamplingConfig(), ())
    with pytest.raises(OldWeights, match="x-1-4 when they were asked for"):
        read_answer(answer_of(used), asked, "x-1-4", "server", continues=True)
    assert read_answer(answer_of(["x-1-4", "x-1-6"]), asked, "x-1-4", "server", continues=True).versions == (4, 6)
    with pytest.raises(OldWeights):
        read_answer(answer_of(["x-1-4", "x-1-6"]), asked, "x-1-4", "server")


def answer_of(used: list[str]) -> dict[str, Any]:
    """Return an answer of two tokens that weights with these names sampled."""
    ends = {1: [2], 2: [1, 2]}[len(used)]
    spans = [
        {"version": name, "start": end - 1 if len(used) == 2 else 0, "end": end}
        for name, end in zip(used, ends, strict=True)
    ]
    content = [{"token_id": token, "logprob": -1.0} for token in (3, 4)]
    choice = {
        "token_ids": [3, 4],
        "finish_reason": "length",
        "logprobs": {"content": content},
        "weight_versions": spans,
    }
    return {"choices": [choice]}


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [CORRECTED, {**PPO, "is_correction": "token_truncate"}], ids=["grpo", "ppo"])
def test_a_run_that_continues_responses_counts_their_tokens(
    trainer: dict[str, Any], stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second round waits after two tokens until the weights have changed; the run does not wait for it."""
    submitted = list[Any]()
    submit = VLLMSampler.submit

    def recorded(self: VLLMSampler, *given: Any, **options: Any) -> Any:
        handle = submit(self, *given, **options)
        submitted.append(handle)
        wait_until(lambda: len(unseeded(stand_in)) == 8 * len(submitted))
        return handle

    def wait(body: dict[str, Any], count: int) -> None:
        if count == 2 and any(body is each for each in unseeded(stand_in)[8:16]):
            wait_until(lambda: stand_in.calls.count("/finish_weight_update") == 2)

    monkeypatch.setattr(VLLMSampler, "submit", recorded)
    stand_in.before_token = wait
    result = train(
        stand_in.url, tmp_path, trainer=trainer, run={"steps": 3, "asynchronous": 1},
        sampler={"name": "vllm", "url": stand_in.url, "continue_responses": True},
    )  # fmt: skip
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    renewed = [line["age/renewed_frac"] for line in lines if "age/renewed_frac" in line]
    rows = [json.loads(line) for line in (result.run_dir / "rollouts.jsonl").read_text().splitlines()]
    second = [row["length"] for row in rows if row["step"] == 2]
    assert renewed[0] == 0
    assert renewed[1] == pytest.approx(sum(max(0, n - 2) for n in second) / sum(second), abs=1e-6)


def test_responses_are_continued_in_asynchronous_runs_only(stand_in: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sampler\.continue_responses: no response is under way"):
        train(stand_in.url, tmp_path, sampler={"name": "vllm", "url": stand_in.url, "continue_responses": True})


def test_states_that_cannot_be_dropped_end_the_run(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, policy, post = make_continuing(stand_in, tmp_path), make_policy(), stand_in.post
    refusing = "/reset_prefix_cache?reset_running_requests=true"
    monkeypatch.setattr(
        stand_in, "post", lambda path, body: (200, {"success": False}) if path == refusing else post(path, body)
    )
    with pytest.raises(EngineError, match="states of earlier weights could not be dropped"):
        sampler(policy, ROWS, SAMPLING, row_seeds=[1, 2, 3])
