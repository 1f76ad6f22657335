"""Tests of the rollout log: training samples are written in order, from all ranks, up to the configured number."""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.rewards.combine import Scored
from rlcore.settings import RunConfig
from rlcore.training.rollout import Rollouts, is_plain
from rlcore.types import Prompt, Trajectories


class World:
    """Several ranks in one process: `gather_to_main` concatenates the rows of all ranks once all have called it."""

    def __init__(self, size: int, folder: Path, keep: Any) -> None:
        self.size, self.brought = size, [list[Any]() for _ in range(size)]
        self.ranks = [Rollouts(keep, self.place(rank), folder) for rank in range(size)]

    def place(self, rank: int) -> Any:
        return SimpleNamespace(rank=rank, is_main=rank == 0, gather_to_main=lambda rows: self.gather(rank, rows))

    def gather(self, rank: int, rows: list[Any]) -> list[Any]:
        self.brought[rank] = rows
        return [row for brought in self.brought for row in brought]

    def share(self, rank: int, texts: Sequence[str]) -> None:
        """Score the prompts that `Ranks.share` assigns to a rank."""
        add(self.ranks[rank], texts[rank :: self.size])

    def write(self, step: int) -> None:
        for rollouts in reversed(self.ranks):  # rank 0, which writes, comes last
            rollouts.write(step)


def add(
    rollouts: Rollouts, texts: Sequence[str], *, by_name: dict[str, list[float | None]] | None = None, **columns: Any
) -> None:
    """Score prompts `<text>?` continued by the text, with longer texts scored higher; a text ends with a full stop."""
    prompts = [Prompt(f"{text}?", (1,), columns) for text in texts]
    masks = [[False] + [True] * len(text) for text in texts]
    batch = Trajectories.stack([[0] * len(mask) for mask in masks], masks, ended=[text.endswith(".") for text in texts])
    scores = [float(len(text)) for text in texts]
    given = {"length": list(scores)} if by_name is None else by_name
    rollouts.add(prompts, batch, Scored(list(texts), torch.tensor(scores), None, given))


def read(folder: Path) -> list[dict[str, Any]]:
    file = folder / "rollouts.jsonl"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def outputs(folder: Path) -> list[tuple[int, str]]:
    return [(row["step"], row["output"]) for row in read(folder)]


def test_a_line_of_the_rollout_log_has_the_response_and_its_scores(tmp_path: Path) -> None:
    world = World(1, tmp_path, "all")
    add(world.ranks[0], ["abc", "d."])
    add(world.ranks[0], ["e"], by_name={"first": [1.5], "second": [None]}, name="x", ids=[1, 2], model=object())
    add(world.ranks[0], ["f"], by_name={})
    world.write(7)
    assert read(tmp_path) == [
        {"step": 7, "prompt": "abc?", "output": "abc", "length": 3, "ended": False, "reward": 3.0},
        {"step": 7, "prompt": "d.?", "output": "d.", "length": 2, "ended": True, "reward": 2.0},
        {"step": 7, "prompt": "e?", "output": "e", "length": 1, "ended": False, "reward": 1.0, "reward/first": 1.5,
         "reward/second": None, "columns": {"name": "x", "ids": [1, 2]}},
        {"step": 7, "prompt": "f?", "output": "f", "length": 1, "ended": False},
    ]  # fmt: skip


@pytest.mark.parametrize(("keep", "count"), [("none", 0), (0, 0), (1, 1), (4, 4), (100, 7), ("all", 7)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_first_of_each_step_are_kept_in_the_prompts_order_whatever_the_number_of_ranks(
    tmp_path: Path, size: int, keep: Any, count: int
) -> None:
    world = World(size, tmp_path, keep)
    for step in (1, 2):
        for texts in (["a", "bb", "ccc", "dddd", "e"], ["ff", "g"]):
            for rank in range(size):
                world.share(rank, texts)
        world.write(step)
    first = ["a", "bb", "ccc", "dddd", "e", "ff", "g"][:count]
    assert outputs(tmp_path) == [(step, text) for step in (1, 2) for text in first]


def test_ranks_need_not_score_equally_often(tmp_path: Path) -> None:
    world = World(2, tmp_path, 3)
    add(world.ranks[0], ["a"])
    add(world.ranks[1], ["b", "c"])
    add(world.ranks[0], ["d", "e"])
    world.write(1)
    world.write(2)  # and some steps have none
    add(world.ranks[1], ["f"])
    world.write(3)
    assert outputs(tmp_path) == [(1, "a"), (1, "b"), (1, "c"), (3, "f")]


def test_no_rollouts_are_logged_while_logging_is_paused(tmp_path: Path) -> None:
    world = World(1, tmp_path, 2)
    with suppress(ValueError), world.ranks[0].paused():
        with world.ranks[0].paused():
            add(world.ranks[0], ["a"])
        add(world.ranks[0], ["b"])
        raise ValueError("in the evaluation")
    add(world.ranks[0], ["c"])
    world.write(1)
    assert outputs(tmp_path) == [(1, "c")]


def test_lines_that_do_not_fit_on_the_disk_are_retried_and_counted_at_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = World(1, tmp_path, "all")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (120, hard))
    try:
        for step in (1, 2):
            add(world.ranks[0], ["a"])
            world.write(step)
        written = outputs(tmp_path)
        with pytest.raises(OSError, match="too large"):
            world.ranks[0].close(None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert written == [(1, "a")]
    world.ranks[0].close(None)
    assert outputs(tmp_path) == [(1, "a"), (2, "a")]
    assert capsys.readouterr().err.count("lines could not be written") == 1


@pytest.mark.parametrize("value", [None, True, 1, 0.5, "x", [1, ("a", None)], {"a": {"b": []}}])
def test_values_that_json_can_represent_count_as_plain(value: Any) -> None:
    assert is_plain(value)


@pytest.mark.parametrize("value", [object(), torch.ones(1), [object()], {"a": torch}, {1: 2}, {1, 2}, b"x", print])
def test_values_that_json_would_change_do_not_count_as_plain(value: Any) -> None:
    assert not is_plain(value)


@pytest.mark.parametrize("keep", ["none", "all", 0, 3])
def test_the_number_of_logged_rollouts_is_a_number_or_a_word(keep: Any) -> None:
    assert structure(RunConfig, {"rollouts": keep}).rollouts == keep


@pytest.mark.parametrize(
    ("keep", "said"),
    [("al", "a whole number or one of 'none', 'all'; did you mean 'all'"), (-1, "at least 0"), (1.5, "a whole number")],
)
def test_an_invalid_number_of_logged_rollouts_is_refused(keep: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"rollouts = .*{said}"):
        structure(RunConfig, {"rollouts": keep})


@pytest.mark.parametrize(("keep", "count"), [("all", 6), (4, 4), ("none", 0)])
def test_a_run_keeps_what_training_scores_and_nothing_of_its_evaluations(
    tmp_path: Path, tiny_llama: Any, char_tokenizer: Any, keep: Any, count: int
) -> None:
    def reward_fn(outputs: list[str]) -> list[float]:
        return [float(len(output)) for output in outputs]

    result = rlcore.train(
        {"path": tiny_llama},
        tokenizer=char_tokenizer,
        trainer={"name": "ppo", "rollouts": 6, "batch_size": 6, "epochs": 1},
        prompts=[{"prompt": "ab", "id": 1}, {"prompt": "c", "id": 2}],
        eval_prompts=["e"],
        reward_fn=reward_fn,
        gen={"max_new_tokens": 3},
        eval={"every": 1, "at_start": True},
        run={"root": str(tmp_path), "name": "mine", "steps": 2, "rollouts": keep},
        loggers=[],
    )
    rows = read(result.run_dir)
    assert [row["step"] for row in rows] == [1] * count + [2] * count
    assert {(row["prompt"], row["columns"]["id"]) for row in rows} <= {("ab", 1), ("c", 2)}
    assert all(row["reward"] == len(row["output"]) for row in rows)
    assert len((result.run_dir / "completions.jsonl").read_text().splitlines()) == 3
