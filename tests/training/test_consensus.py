"""Tests of the checks that all ranks have the same configuration and data."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.config import structure
from rlcore.errors import RanksError
from rlcore.settings import TrainConfig
from rlcore.training import consensus
from rlcore.training.consensus import agree_on_configuration, agree_on_identity, agree_on_weights
from rlcore_testing.small import make_llama


class Gathered:
    """Ranks of which each calls the same check; a gather returns what all of them pass to it."""

    def __init__(self, check: Any, *values: Any) -> None:
        self.world, self.gathers = len(values), 0
        self.passed = []
        for value in values:
            rank = _Rank()
            check(rank, value)
            self.passed.append(rank.passed)

    def gather(self, _: list[Any]) -> list[Any]:
        self.gathers += 1
        return [each[self.gathers - 1] for each in self.passed]


class _Rank:
    """Records what a check gathers first, and then, as if another rank differed."""

    world = 2

    def __init__(self) -> None:
        self.passed: list[Any] = []

    def gather(self, values: list[Any]) -> list[Any]:
        self.passed += values
        return [*values, "another"] if len(self.passed) == 1 else values


def test_differing_rows_of_a_rank_are_named_with_their_counts() -> None:
    here, there = {"data.samples": "23 rows", "seed": 0}, {"data.samples": "15 rows", "seed": 0}
    ranks = Gathered(agree_on_identity, here, there, here, there)
    with pytest.raises(RanksError) as caught:
        agree_on_identity(ranks, here)  # type: ignore[arg-type]
    assert str(caught.value) == (
        "rank 1, 3: another model or data than rank 0; every process of a run must have the same\n"
        "  data.samples: '15 rows' on rank 1, '23 rows' on rank 0"
    )


def test_data_that_only_one_rank_has_are_an_error_that_names_them() -> None:
    here, there = {"seed": 0}, {"seed": 0, "data.prompts": "3 rows"}
    for first, other in ((here, there), (there, here)):
        with pytest.raises(RanksError, match=r"\n  data.prompts: .*'3 rows' on rank"):
            agree_on_identity(Gathered(agree_on_identity, first, other), first)  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [consensus.SHOWN - 1, consensus.SHOWN, consensus.SHOWN + 1, consensus.SHOWN + 5])
def test_differences_are_listed_up_to_a_number_and_the_others_counted(count: int) -> None:
    here, there = ({f"data.{i:02d}": value for i in range(count)} for value in (0, 1))
    with pytest.raises(RanksError) as caught:
        agree_on_identity(Gathered(agree_on_identity, here, there), here)  # type: ignore[arg-type]
    _, *lines = str(caught.value).split("\n")
    shown = min(count, consensus.SHOWN)
    assert len([line for line in lines if line.startswith("  data.")]) == shown
    assert lines[shown:] == ([f"  and {count - shown} more"] if count > shown else [])


@pytest.mark.parametrize(
    ("option", "is_refused"),
    [({"gen": {"top_k": 5}}, True), ({"checkpoint": {"every": 3}}, True), ({"run": {"root": "/scratch/1"}}, False)],
)
def test_options_differ_only_where_they_name_local_folders(option: dict[str, Any], is_refused: bool) -> None:
    here, there = structure(TrainConfig, {}), structure(TrainConfig, option)
    ranks = Gathered(agree_on_configuration, here, there)
    if is_refused:
        with pytest.raises(RanksError, match=next(iter(option))):
            agree_on_configuration(ranks, here)  # type: ignore[arg-type]
    else:
        agree_on_configuration(ranks, here)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("section", "is_refused"),
    [
        ({"model": {"tokenizer": {"path": "/scratch/1/model"}}}, False),
        ({"data": {"reward_fn": {"length": {"path": "/scratch/1/rewards.py"}}}}, False),
        ({"model": {"tokenizer_of": "x"}}, True),
        ({"data": {"reward_weights": [2.0]}}, True),
        ({"trainer": {"model": {"path": "/scratch/1"}}}, True),
    ],
)
def test_options_below_a_local_section_may_differ_and_names_that_only_begin_like_one_may_not(
    section: dict[str, Any], is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sections of plugins and of data have any options, so plain records stand for the configurations here."""
    monkeypatch.setattr(consensus, "to_record", lambda record: record)
    ranks = Gathered(agree_on_configuration, {"run": {"steps": 3}}, {"run": {"steps": 3}, **section})
    if is_refused:
        with pytest.raises(RanksError, match="another configuration than rank 0"):
            agree_on_configuration(ranks, {"run": {"steps": 3}})  # type: ignore[arg-type]
    else:
        agree_on_configuration(ranks, {"run": {"steps": 3}})  # type: ignore[arg-type]


def test_values_bound_to_a_reward_may_differ_but_its_presence_may_not() -> None:
    bound = [{"data.reward_fn.r": f"m:r(device={rank})"} for rank in (0, 1)]
    agree_on_identity(Gathered(agree_on_identity, *bound), bound[0])  # type: ignore[arg-type]
    with pytest.raises(RanksError, match="reward_fn"):
        agree_on_identity(Gathered(agree_on_identity, bound[0], {}), bound[0])  # type: ignore[arg-type]


def test_models_in_memory_that_were_built_with_other_random_numbers_are_refused() -> None:
    same, other = make_llama(), make_llama(seed=5)
    agree_on_weights(Gathered(agree_on_weights, make_llama(), same), same)  # type: ignore[arg-type]
    agree_on_weights(Gathered(agree_on_weights, "folder", "other/folder"), "folder")  # type: ignore[arg-type]
    for wrong in (other, "folder"):
        with pytest.raises(RanksError, match=r"rank 1: another model .*\n  weights of the model in memory \(seed"):
            agree_on_weights(Gathered(agree_on_weights, same, wrong), same)  # type: ignore[arg-type]
