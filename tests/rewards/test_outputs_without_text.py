"""Reward and metric functions of outputs that are no text receive them by name, with the prompts and their columns."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rlcore.errors import DataError, RewardError
from rlcore.rewards.chosen_rewards import choose_rewards
from rlcore.rewards.combine import RewardBatch, Rewards
from rlcore.rewards.values import call_metric_on
from rlcore.types import Prompt

PROMPTS = [Prompt("a", (0,), {"label": 1}), Prompt("b", (1,), {"label": 2})]
IMAGES = torch.tensor([[0.25, 0.75], [1.0, 2.0]])


def score(reward_fn: Any, prompts: list[Prompt] = PROMPTS) -> RewardBatch:
    return Rewards.load(choose_rewards(reward_fn)).score(prompts, {"images": IMAGES}, where="step 3")


def test_functions_receive_outputs_by_name_by_position_or_as_their_first_argument() -> None:
    def by_position(first: torch.Tensor, second: list[str], /) -> torch.Tensor:
        assert second == ["a", "b"]
        return first.sum(1)

    def by_name(prompts: list[str], images: torch.Tensor, label: list[int]) -> list[float]:
        assert prompts == ["a", "b"]
        return [float(each.sum()) * number for each, number in zip(images, label, strict=True)]

    assert score(by_position).totals == [1.0, 3.0]
    assert score(by_name).totals == [1.0, 6.0]
    assert score(lambda pictures: pictures.mean(1)).totals == [0.5, 1.5]
    assert score([by_position, (by_name, 2.0)]).totals == [3.0, 15.0]


def test_a_tensor_with_one_column_is_read_as_one_score_per_output() -> None:
    assert score(lambda images: images.sum(1, keepdim=True)).totals == [1.0, 3.0]


def test_a_function_cannot_change_the_outputs_of_another() -> None:
    def darken(images: torch.Tensor) -> list[float]:
        images.zero_()
        return [0.0, 0.0]

    assert score([darken, lambda images: images.sum(1)]).totals == [1.0, 3.0]
    assert IMAGES.sum() == 4.0


@pytest.mark.parametrize(
    ("reward_fn", "says"),
    [
        (lambda images: [1.0], "returned 1 values for 2 samples"),
        (lambda images: [1.0, float("nan")], "returned nan for sample 1, which is not a finite number"),
        (lambda images: images, "returned 2 numbers for sample 0; return one number per sample"),
        (lambda images, outputs: [0, 0], "unknown parameter 'outputs'; known parameters: images, prompts, label"),
    ],
)
def test_unusable_rewards_of_outputs_without_text_are_refused(reward_fn: Any, says: str) -> None:
    with pytest.raises(RewardError, match=says):
        score(reward_fn)


def test_a_column_with_the_name_of_the_outputs_is_refused() -> None:
    with pytest.raises(DataError, match="a column 'images', which is the name of another argument"):
        score(lambda images: [0.0], [Prompt("a", (0,), {"images": 1})])


def test_metric_functions_receive_the_same_arguments() -> None:
    measured = call_metric_on(lambda images: {"total": images.sum(1)}, PROMPTS, {"images": IMAGES})
    assert measured == {"total": [1.0, 3.0]}
