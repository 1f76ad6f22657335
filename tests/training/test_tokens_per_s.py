"""Tests of `perf/tokens_per_s` for every trainer: it equals manual counts, with a manual clock."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_clock import Clock

import rlcore
from rlcore.training import loop
from rlcore_testing.rig.isolate import call_on_two_ranks
from rlcore_testing.small import make_gpt2, make_tokenizer

SAMPLES = [["ab", "cde"], ["a", "b"], ["abc", "d"], ["a", "bcdef"]]
"""Chosen: 3 + 1 + 1 + 5 letters, and EOS after each of 4 outputs."""


class Steps:
    """The training loop's clock, on which every step takes 250 ms: it is read at the start and the end of a step."""

    def __init__(self) -> None:
        self.clock = Clock()

    def perf_counter(self) -> float:
        self.clock.spend(250)
        return self.clock() / 1e9


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=Steps().perf_counter))


def train(folder: Path, trainer: dict[str, Any], name: str = "run", **given: Any) -> list[dict[str, float]]:
    """Train for some steps and return their metrics."""
    rlcore.train(
        make_gpt2(), trainer=trainer, tokenizer=make_tokenizer(), eval={"at_end": False}, checkpoint={"at_end": False},
        run={"root": str(folder), "name": name, "steps": 4}, **given,
    )  # fmt: skip
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("micro", [0, 2])
def test_for_demonstrations_the_chosen_tokens_count(tmp_path: Path, by_hand: None, micro: int) -> None:
    trainer = {"name": "sft", "batch_size": 4, "micro_batch_size": micro}
    rows = train(tmp_path, trainer, samples=SAMPLES, eval_samples=SAMPLES, loggers=["jsonl"])
    assert [row["perf/tokens_per_s"] for row in rows] == [14 / 0.25] * 4


def test_ilql_counts_the_same_tokens_as_sft(tmp_path: Path, by_hand: None) -> None:
    trainer = {"name": "ilql", "batch_size": 4}
    rows = train(tmp_path, trainer, samples=SAMPLES, rewards=[1.0, 0.0, 2.0, -1.0], loggers=["jsonl"])
    assert [row["perf/tokens_per_s"] for row in rows] == [14 / 0.25] * 4


@pytest.mark.parametrize(
    "trainer",
    [
        {"name": "ppo", "rollouts": 6, "batch_size": 3, "epochs": 3},
        {"name": "reinforce", "rollouts": 6},
        {"name": "rft", "generations": 3, "improve_steps": 1},
    ],
    ids=lambda trainer: trainer["name"],
)
def test_for_rollouts_the_sampled_tokens_count_once(tmp_path: Path, by_hand: None, trainer: dict[str, Any]) -> None:
    lengths: list[int] = []

    def reward_fn(output_tokens: list[list[int]]) -> list[float]:
        lengths.append(sum(len(tokens) for tokens in output_tokens))
        return _numbers(output_tokens)

    gen = {"max_new_tokens": 5, "batch_size": 4, "eos_token_ids": [30, *range(12)]}
    rows = train(tmp_path, trainer, prompts=["ab", "c"], reward_fn=reward_fn, gen=gen, loggers=["jsonl"])
    assert len(set(lengths)) > 1
    assert [row["perf/tokens_per_s"] for row in rows] == [length / 0.25 for length in lengths]


def test_a_step_that_samples_nothing_counts_what_it_learned_from(tmp_path: Path, by_hand: None) -> None:
    trainer = {"name": "rft", "generations": 4, "improve_steps": 2, "history": 1}
    gen = {"max_new_tokens": 5, "min_new_tokens": 5}
    rows = train(tmp_path, trainer, prompts=["c"], reward_fn=_numbers, gen=gen, loggers=["jsonl"])
    sampled, learned = [20.0] * 2, [row["rft/unique"] * 5 for row in rows[1::2]]
    assert [row["perf/tokens_per_s"] * 0.25 for row in rows] == [sampled[0], learned[0], sampled[1], learned[1]]
    assert max(learned) < 20


def in_company(folder: str) -> list[list[float]]:
    """Return the tokens of each step of runs with two processes, by the first process's clock."""
    samples = {"samples": [["ab", "cd"]] * 3}
    gen = {"max_new_tokens": 4, "min_new_tokens": 4}
    rollouts = {"prompts": ["ab", "c"], "gen": gen, "reward_fn": _numbers}
    runs = [
        train(Path(folder), {"name": "sft", "batch_size": 3}, "sft", **samples, loggers=["jsonl"]),
        train(Path(folder), {"name": "reinforce", "rollouts": 5}, "reinforce", **rollouts, loggers=["jsonl"]),
    ]
    return [[row["perf/tokens_per_s"] * row["time/step_s"] for row in rows] for rows in runs]


def _numbers(output_tokens: list[list[int]]) -> list[float]:
    return [float(i) for i in range(len(output_tokens))]


@pytest.mark.slow
def test_tokens_per_second_counts_those_of_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))  # for the processes that import this file
    arguments = {"folder": str(tmp_path)}
    sft, reinforce = call_on_two_ranks("test_tokens_per_s:in_company", arguments, what="counting on two ranks")
    assert sft == pytest.approx([9.0] * 4)  # a padding sample is used where one process has a sample less
    assert reinforce == pytest.approx([20.0] * 4)
