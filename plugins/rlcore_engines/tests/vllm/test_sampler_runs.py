"""Runs whose rollouts come from a server: what they learn, record, repeat and refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm_stand_in
from vllm_stand_in import StandIn

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, Diverged
from rlcore.protocols import Step
from rlcore.sampling import sample
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.rig.isolate import call_in_new_process, call_on_two_ranks
from rlcore_testing.small import LETTERS, PROMPTS, make_gpt2, make_llama, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.sampling.token_options import SamplerConfig

GRPO: dict[str, Any] = {"name": "grpo", "rollouts": 8, "num_generations": 4, "optimizer": {"lr": 1e-2, "eps": 1e-3}}
PPO: dict[str, Any] = {"name": "ppo", "rollouts": 8, "batch_size": 4, "epochs": 1, "optimizer": {"lr": 1e-2}}


def train(
    url: str, folder: Path, *, trainer: dict[str, Any] = GRPO, run: dict[str, Any] | None = None, **options: Any
) -> Any:
    given: dict[str, Any] = {
        "prompts": list(PROMPTS), "reward_fn": toy_reward, "gen": {"max_new_tokens": 5}, "loggers": [],
        "sampler": {"name": "vllm", "url": url},
    }  # fmt: skip
    run = {"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all", **(run or {})}
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, run=run, **{**given, **options})


def rollouts(result: Any) -> list[tuple[Any, ...]]:
    lines = (result.run_dir / "rollouts.jsonl").read_text().splitlines()
    return [(row["step"], row["prompt"], row["output"], row["reward"]) for row in map(json.loads, lines)]


def weights(result: Any) -> list[torch.Tensor]:
    return [each.detach() for each in result.policy.module.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [GRPO, PPO], ids=["grpo", "ppo"])
def test_a_run_learns_from_samples_of_the_weights_of_each_step(
    trainer: dict[str, Any], stand_in: StandIn, tmp_path: Path
) -> None:
    result = train(stand_in.url, tmp_path, trainer=trainer, run={"steps": 3})
    lines = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    gaps = [line["is/logprob_gap"] for line in lines if "is/logprob_gap" in line]
    assert len(gaps) == 3
    assert max(gaps) < 1e-5
    assert stand_in.calls.count("/update_weights") == 4  # before each step, and before the last evaluation
    assert not (result.run_dir / "vllm").exists()


@pytest.mark.slow
def test_resuming_through_a_server_equals_not_having_stopped(stand_in: StandIn, tmp_path: Path) -> None:
    whole = train(stand_in.url, tmp_path / "whole", run={"steps": 4})
    train(stand_in.url, tmp_path / "parts", run={"steps": 2})
    parts = train(stand_in.url, tmp_path / "parts", run={"steps": 4, "resume": "auto"})
    assert rollouts(parts) == rollouts(whole)
    assert all(map(torch.equal, weights(parts), weights(whole)))


@pytest.mark.slow
def test_a_run_resumes_on_another_server_if_that_is_accepted(stand_in: StandIn, tmp_path: Path) -> None:
    whole = train(stand_in.url, tmp_path / "whole", run={"steps": 4})
    train(stand_in.url, tmp_path / "parts", run={"steps": 2})
    other = StandIn()
    try:
        with pytest.raises(ConfigError, match=r"sampler\.url was"):
            train(other.url, tmp_path / "parts", run={"steps": 4, "resume": "auto"})
        accepted = {"steps": 4, "resume": "auto", "accept_changes": ["sampler"]}
        parts = train(other.url, tmp_path / "parts", run=accepted)
    finally:
        other.close()
    assert rollouts(parts) == rollouts(whole)
    assert all(map(torch.equal, weights(parts), weights(whole)))


@pytest.mark.slow
def test_a_server_that_fails_changes_nothing(stand_in: StandIn, tmp_path: Path) -> None:
    whole = train(stand_in.url, tmp_path / "whole")
    stand_in.faults.extend(["", "", "", "", "dies", "", "aborted", "fails", ""])
    other = train(stand_in.url, tmp_path / "other")
    assert rollouts(other) == rollouts(whole)
    assert all(map(torch.equal, weights(other), weights(whole)))


@pytest.mark.slow
def test_two_servers_learn_as_one(stand_in: StandIn, tmp_path: Path) -> None:
    second = StandIn()
    try:
        both = {"name": "vllm", "url": [stand_in.url, second.url]}
        two = train(stand_in.url, tmp_path / "two", sampler=both)
        assert len(second.asked) > 8
    finally:
        second.close()
    one = train(stand_in.url, tmp_path / "one")
    assert rollouts(two) == rollouts(one)
    assert all(map(torch.equal, weights(two), weights(one)))


def test_a_log_prob_that_is_no_number_ends_the_run(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.faults.extend(["", "", "", "", "not_a_number"])
    with pytest.raises(Diverged, match="a sampled token has logprobs = nan"):
        train(stand_in.url, tmp_path)


@pytest.mark.slow
def test_log_probs_of_a_server_are_never_taken_for_the_policys_own(stand_in: StandIn, tmp_path: Path) -> None:
    """With `top_p` they are those of another distribution: ratios would be biased (TRL's issue 6789)."""
    result = train(stand_in.url, tmp_path, trainer=PPO, gen={"max_new_tokens": 5, "top_p": 0.8})
    assert not result.run.sampling.is_exact
    assert result.metrics["policy/ratio_mean"] == pytest.approx(1.0, abs=0.3)
    assert "is/logprob_gap" not in result.metrics


@pytest.mark.slow
def test_a_key_in_headers_is_sent_and_is_in_no_file_or_line_of_a_run(
    stand_in: StandIn, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "sesame-4711"
    sampler = {"name": "vllm", "url": stand_in.url, "headers": {"Authorization": f"Bearer {key}"}}
    result = train(stand_in.url, tmp_path, sampler=sampler, run={"report": True})
    assert {each["Authorization"] for each in stand_in.headers} == {f"Bearer {key}"}
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert result.run_dir / "config.yaml" in files
    assert not [file for file in files if key.encode() in file.read_bytes()]
    assert key not in "".join(capfd.readouterr())


class Twice:
    """Asks two times; the reward of a turn is its number of letters a."""

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Any) -> Step:
        return Step(messages="you " + turn.text[-1:], reward=float(turn.text.count("a")), done=turn.index == 1)


@pytest.mark.slow
def test_environments_of_two_turns_play_through_a_server(stand_in: StandIn, tmp_path: Path) -> None:
    """Every turn is a prompt of its own, with a seed of its own; tokens are those that the default sampler scores."""
    options: dict[str, Any] = {"reward_fn": None, "environment": Twice, "gen": {"max_new_tokens": 3}}
    result = train(stand_in.url, tmp_path, **options)
    assert result.metrics["episode/turns"] == 2.0
    assert result.metrics["episode/failed"] == 0.0
    assert result.metrics["is/logprob_gap"] < 1e-5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"eval": {"gen": {"temperature": [1.0, 0.001]}}}, "eval.gen.temperature = 0.001: vLLM samples at 0.01"),
        ({"gen": {"beta": 1.0}}, "gen.beta = 1: a vLLM server has no Q-heads"),
        ({"logit_mask": [[True] * 32] * 32}, "logit_mask: sampler .* takes none"),
    ],
)
def test_options_that_a_server_lacks_are_refused_before_the_first_step(
    options: dict[str, Any], words: str, stand_in: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(stand_in.url, tmp_path, **options)
    assert not stand_in.asked
    assert not (tmp_path / "run").exists()


def make_policy() -> Any:
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())


def test_completions_are_reported_in_parts_of_batch_size(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(url=stand_in.url, weights_dir=str(tmp_path / "weights")))
    prompts = [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in PROMPTS]
    parts: list[tuple[list[int], Trajectories]] = []
    batch = sampler(
        make_policy(), prompts, SamplingConfig(max_new_tokens=4, batch_size=3), row_seeds=list(range(8)),
        on_batch=lambda rows, part: parts.append((rows, part)),
    )  # fmt: skip
    assert [len(rows) for rows, _ in parts] == [3, 3, 2]
    assert sorted(row for rows, _ in parts for row in rows) == list(range(8))
    for rows, part in parts:
        assert part.action_tokens == [batch.action_tokens[row] for row in rows]


@pytest.mark.parametrize(
    ("gen", "columns"),
    [
        ({}, ["logprobs"]), ({"temperature": 0.7}, ["logprobs"]), ({"top_k": 4}, ["sampling_logprobs"]),
        ({"top_p": 0.9}, ["sampling_logprobs"]), ({"min_new_tokens": 2}, ["sampling_logprobs"]),
        ({"temperature": 0.0}, []),
    ],
)  # fmt: skip
def test_columns_say_whose_distribution_log_probs_belong_to(
    gen: dict[str, Any], columns: list[str], stand_in: StandIn, tmp_path: Path
) -> None:
    sampler = VLLMSampler(VLLMConfig(url=stand_in.url, weights_dir=str(tmp_path / "weights")))
    prompts = [Prompt("ab", (0, 1)), Prompt("c", (2,))]
    batch = sampler(make_policy(), prompts, SamplingConfig(max_new_tokens=4, **gen), row_seeds=[1, 2])
    assert sorted(batch.columns) == columns
    empty = sampler(make_policy(), [], SamplingConfig(max_new_tokens=4, **gen), row_seeds=[])
    assert sorted(empty.columns) == columns


OF_TOKENS: dict[str, Any] = {
    "min_p": 0.03, "repetition_penalty": 1.4, "logit_bias": {"a": 1.5, 4: -2.0},
    "allowed_tokens": [*range(20), 30],
}  # fmt: skip


@pytest.mark.parametrize("gen", [{}, {"temperature": 0.7, "top_k": 9}, {"temperature": 0.0}], ids=str)
def test_options_on_tokens_are_parameters_of_requests_and_mean_the_same(
    gen: dict[str, Any], stand_in: StandIn, tmp_path: Path
) -> None:
    sampler = VLLMSampler(structure(VLLMConfig, {"url": stand_in.url, "weights_dir": str(tmp_path), **OF_TOKENS}))
    policy, prompts = make_policy(), [Prompt("abba", (0, 1, 1, 0)), Prompt("c", (2,))]
    sampling = SamplingConfig(max_new_tokens=6, **gen)
    batch = sampler(policy, prompts, sampling, row_seeds=[1, 2])
    parameters = stand_in.asked[-1]["sampling_params"]
    assert (parameters["min_p"], parameters["repetition_penalty"]) == (0.03, 1.4)
    assert parameters["logit_bias"] == {"0": 1.5, "4": -2.0}
    assert parameters["allowed_token_ids"] == [*range(20), 30]
    assert not sampler.draws_from_policy
    options = structure(SamplerConfig, OF_TOKENS)
    if gen.get("temperature") == 0:
        expected = sample(policy, prompts, sampling, options=options)
        assert batch.action_tokens == expected.action_tokens
        assert not batch.columns
        return
    assert sorted(batch.columns) == ["sampling_logprobs"]
    seen = []
    for i, row in enumerate(batch.action_tokens):  # the log-prob of each token under the sampler `default`
        for at, token in enumerate(row):
            many = [Prompt("", (*prompts[i].tokens, *row[:at]))] * 400
            drawn = sample(policy, many, SamplingConfig(max_new_tokens=1, **gen), options=options)
            found = {tokens[0]: j for j, tokens in enumerate(drawn.action_tokens)}
            if token in found:
                mine = drawn["sampling_logprobs"][found[token]][drawn.action_mask[found[token]]]
                theirs = batch["sampling_logprobs"][i][batch.action_mask[i]][at]
                assert float(theirs) == pytest.approx(float(mine), abs=1e-5)
                seen.append(token)
    assert len(seen) > 6


@pytest.mark.slow
def test_a_run_with_options_on_tokens_warns_and_computes_its_own_log_probs(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = train(stand_in.url, tmp_path, sampler={"name": "vllm", "url": stand_in.url, "min_p": 0.1})
    assert "because=sampler" in capsys.readouterr().err
    assert "is/logprob_gap" not in result.metrics


@pytest.mark.parametrize(("sampler", "options", "words"), [
    ({"min_p": 0.1}, {"gen": {"top_p": 0.9}}, r"sampler\.min_p = 0\.1 with gen\.top_p = 0\.9: vLLM applies"),
    ({"min_p": 0.1}, {"eval": {"gen": {"top_p": [1.0, 0.9]}}}, r"with eval\.gen\.top_p = 0\.9"),
    ({"forbidden_tokens": [3]}, {}, r"forbidden_tokens = \[3\]: vLLM has no such parameter; list the others"),
    ({"allowed_tokens": ["ab"]}, {}, r"sampler\.allowed_tokens: the text 'ab' is 2 tokens"),
], ids=str)  # fmt: skip
def test_options_on_tokens_that_mean_something_else_there_are_refused(
    sampler: dict[str, Any], options: dict[str, Any], words: str, stand_in: StandIn, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(stand_in.url, tmp_path, sampler={"name": "vllm", "url": stand_in.url, **sampler}, **options)
    assert not stand_in.asked


def test_a_stop_sequence_cuts_where_the_default_sampler_does(stand_in: StandIn, tmp_path: Path) -> None:
    """Also if the server, whose tokenizer is another one, does not stop there."""
    sampler = VLLMSampler(VLLMConfig(url=stand_in.url, weights_dir=str(tmp_path / "weights")))
    prompts = [Prompt("ab", (0, 1))] * 6
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_ids": ()}
    free = sampler(make_policy(), prompts, SamplingConfig(**options), row_seeds=list(range(6)))
    texts = ["".join(LETTERS[token] if token < 30 else "_" for token in row) for row in free.action_tokens]
    stop = texts[0][3:5]
    cut = sampler(make_policy(), prompts, SamplingConfig(stop_sequences=(stop,), **options), row_seeds=list(range(6)))
    for text, row, ended in zip(texts, cut.action_tokens, cut.ended.tolist(), strict=True):
        end = text.find(stop)
        assert len(row) == (12 if end < 0 else end + 2)
        assert ended == (end >= 0)


def test_a_server_that_ends_completions_at_other_texts_is_named(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tokenizer is another one: the policy's finds no stop sequence in these completions."""
    sampler = VLLMSampler(VLLMConfig(url=stand_in.url, weights_dir=str(tmp_path / "weights")))
    prompts = [Prompt("ab", (0, 1))] * 6
    sampling = SamplingConfig(stop_sequences=("!",), max_new_tokens=12, eos_token_ids=())
    batch = sampler(make_policy(), prompts, sampling, row_seeds=list(range(6)))
    assert "its tokenizer is another one" not in capsys.readouterr().err
    assert not batch.ended.any()
    monkeypatch.setattr(vllm_stand_in, "LETTERS", "!" + LETTERS[1:])
    for _ in range(2):
        batch = sampler(make_policy(), prompts, sampling, row_seeds=list(range(6)))
    assert batch.ended.any()
    assert capsys.readouterr().err.count("its tokenizer is another one, and completions end too early") == 1


def trained(url: str, folder: str, transfer: str = "files", **run: Any) -> dict[str, Any]:
    """Train an adapter in this process, one of one or two."""
    peft = {"type": "lora", "r": 4, "target_modules": ["q_proj", "down_proj"]}
    result = rlcore.train(
        {"path": make_llama(), "peft": peft}, tokenizer=make_tokenizer(), trainer=GRPO,
        prompts=list(PROMPTS), reward_fn=toy_reward, gen={"max_new_tokens": 5},
        loggers=[], sampler={"name": "vllm", "url": url, "transfer": transfer},
        run={"root": folder, "name": "run", "steps": 2, "report": False, "rollouts": "all", **run},
    )  # fmt: skip
    flat = [each.detach().flatten().tolist() for _, each in result.policy.weights()]
    return {"weights": flat, "rows": rollouts(result) if result.run.ranks.is_main else []}


@pytest.mark.slow
def test_two_processes_sample_the_tokens_of_one(stand_in: StandIn, tmp_path: Path) -> None:
    """The first sends the weights, the second waits for them; rows have the seeds of their places in the round."""
    one = call_in_new_process(
        "test_sampler_runs:trained", {"url": stand_in.url, "folder": str(tmp_path / "one")}, what="one"
    )
    updates = stand_in.calls.count("/update_weights")
    for number, shard in enumerate(("none", "fsdp"), 1):
        two = call_on_two_ranks(
            "test_sampler_runs:trained", {"url": stand_in.url, "folder": str(tmp_path / shard), "shard": shard},
            what=shard,
        )  # fmt: skip
        assert two["rows"] == one["rows"]
        assert stand_in.calls.count("/update_weights") == (1 + number) * updates
        for mine, other in zip(one["weights"], two["weights"], strict=True):
            assert other == pytest.approx(mine, abs=1e-5)
