from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer

import rlcore
from rlcore.errors import ConfigError, RewardError
from rlcore_testing.small import make_gpt2, make_tokenizer

ROWS = [{"prompt": text, "answer": "42", "solution": "x"} for text in ("ab", "cd")]


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    server = JudgeServer()
    yield server
    server.close()


def train(folder: Path, reward_fn: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {"prompts": ROWS, "eval": {"at_end": False}, "gen": {"max_new_tokens": 6}, "loggers": []}
    run = {"root": str(folder), "name": "run", "steps": 1, "report": False, "rollouts": 8} | options.pop("run", {})
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "grpo", "rollouts": 8, "num_generations": 4},
        reward_fn=reward_fn, run=run, **{**defaults, **options},
    )  # fmt: skip


def rollouts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "run" / "rollouts.jsonl").read_text().splitlines()]


def test_several_rewards_are_chosen_by_name_with_weights(tmp_path: Path) -> None:
    rewards = [
        {"fn": "regex", "pattern": "[a-m]"},
        {"fn": "length", "cap": 3, "slack": 2, "weight": 0.5, "name": "brief"},
        {"fn": "repetition", "n": 1, "unit": "tokens", "weight": 0.1},
        "exact_match",
    ]
    result = train(tmp_path, rewards)
    names = ("regex", "brief", "repetition", "exact_match")
    rows = rollouts(tmp_path)
    assert len(rows) == 8
    for row in rows:
        found = [row[f"reward/{name}"] for name in names]
        assert row["reward"] == pytest.approx(found[0] + 0.5 * found[1] + 0.1 * found[2] + found[3], abs=1e-6)
        assert found[0] == float(any("a" <= letter <= "m" for letter in row["output"]))
    for name in names:
        mean = sum(row[f"reward/{name}"] for row in rows) / 8
        assert result.metrics[f"reward/{name}"] == pytest.approx(mean, abs=1e-6)


def test_prompts_without_the_column_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RewardError) as raised:
        train(tmp_path, {"fn": "exact_match", "column": "gold"})
    assert str(raised.value) == (
        "reward function 'exact_match' (step 1, batch of 8) finds no column 'gold' of exact_match.column in the "
        "prompts; they have 'answer', 'solution'. Name another column there, or rename one with data.columns"
    )
    judge = {"fn": "judge", "model": "m", "rubric": "{output} {key}"}
    for reward_fn, named in (("exact_match", "'answer' of exact_match.column"), (judge, "'key' of judge.rubric")):
        with pytest.raises(RewardError, match=rf" finds no column {named} in the prompts; they have no columns\."):
            train(tmp_path, reward_fn, prompts=["ab"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fn": "repetition", "n": 0}, "train: data.reward_fn.n = 0: must lie in [1, 1000] (length of the n-grams)"),
        ({"fn": "repetition", "m": 2}, "data.reward_fn.m"),
        ({"fn": "length", "cap": "3"}, "cap = '3'"),
        (
            {"fn": "exact_match", "column": "the answer"},
            "exact_match.column = 'the answer': must be the name of a column",
        ),
        ({"fn": "exact_match", "column": "prompts"}, "exact_match.column = 'prompts': must be the name of a column"),
        ({"fn": "regex", "pattern": "["}, "regex.pattern = '[': is no regular expression"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        train(tmp_path, options)
    assert message in str(raised.value)


def test_a_failed_judgement_is_no_zero_in_a_run(tmp_path: Path, server: JudgeServer) -> None:
    # The server counts the letters of the prompt, and breaks down at one of them.
    judge = {"fn": "judge", "url": server.url, "model": "m", "rubric": "<{prompt}> {output}", "retries": 0}
    rows = [{"prompt": "abcd"}, {"prompt": "broken"}]
    result = train(tmp_path, judge, prompts=rows)
    found = {row["prompt"]: row["reward"] for row in rollouts(tmp_path)}
    assert found == {"abcd": pytest.approx(0.4), "broken": None}
    assert result.metrics["reward/unscored"] == 4.0
    assert result.metrics["reward/mean"] == pytest.approx(0.4)
    assert (tmp_path / "run" / "judge_cache.jsonl").exists()


def test_a_run_that_the_server_refuses_ends_with_its_answer_and_leaves_no_folder(
    tmp_path: Path, server: JudgeServer
) -> None:
    server.refusal = (404, "no such model")
    judge = {"fn": "judge", "url": server.url, "model": "m", "rubric": "<{prompt}>{output}"}
    with pytest.raises(
        RewardError, match=r"reward function 'judge' \(step 1, batch of 8\) raised .*404 Not Found: no such"
    ):
        train(tmp_path, judge)
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_finds_the_replies_of_the_judge(tmp_path: Path, server: JudgeServer) -> None:
    judge = {"fn": "judge", "url": server.url, "model": "m", "rubric": "<{prompt}>{output}"}
    train(tmp_path, judge, checkpoint={"every": 1})
    asked = len(server.seen)
    assert 2 <= asked <= 8
    train(tmp_path, judge, checkpoint={"every": 1}, run={"steps": 2, "resume": "auto"})
    questions = [seen["messages"][0]["content"] for seen in server.seen]
    assert len(questions) == len(set(questions))


def test_the_budget_of_the_judge_ends_the_run_with_a_checkpoint(tmp_path: Path, server: JudgeServer) -> None:
    judge = {
        "fn": "judge", "url": server.url, "model": "m", "rubric": "<ab> {output}", "max_requests": 6, "concurrency": 1,
    }  # fmt: skip
    result = train(tmp_path, judge, run={"steps": 5})
    assert len(server.seen) == 6
    assert result.run.step == 1
    assert result.metrics["reward/unscored"] == 2.0


@pytest.mark.slow
def test_what_math_could_parse_is_logged_beside_it(tmp_path: Path) -> None:
    parsed = {"fn": "math_accuracy", "report": "parsed", "weight": 0, "name": "parsed"}
    result = train(tmp_path, ["math_accuracy", parsed])
    rows = rollouts(tmp_path)
    assert {row["reward/parsed"] for row in rows} <= {0.0, 1.0}
    assert result.metrics["reward/parsed"] == pytest.approx(sum(row["reward/parsed"] for row in rows) / 8)
    assert all(row["reward"] == row["reward/math_accuracy"] for row in rows)
