"""Advantages on numbers worked by hand."""

from __future__ import annotations

import pytest
import torch

from rlcore_ddpo.loss import PromptStatistics, standardised


def test_rewards_are_divided_by_the_population_deviation() -> None:
    found = standardised(torch.tensor([1.0, 3.0]), torch.tensor([1.0, 3.0]))
    assert found.tolist() == pytest.approx([-1 / (1 + 1e-6), 1 / (1 + 1e-6)], abs=1e-12)
    assert standardised(torch.tensor([2.0, 2.0]), torch.tensor([2.0, 2.0])).tolist() == [0.0, 0.0]


def test_a_prompt_with_few_rewards_is_compared_with_the_round() -> None:
    statistics = PromptStatistics(size=4, min_count=3)
    first = statistics.advantages(["a", "a", "b"], torch.tensor([0.0, 2.0, 4.0]))
    assert first.tolist() == standardised(torch.tensor([0.0, 2.0, 4.0]), torch.tensor([0.0, 2.0, 4.0])).tolist()
    second = statistics.advantages(["a", "b"], torch.tensor([4.0, 6.0]))
    # a: (4 - mean(0, 2, 4)) / std(0, 2, 4) = 2 / sqrt(8 / 3); b has 2 rewards: (6 - 5) / 1
    assert second.tolist() == pytest.approx([2 / (8 / 3) ** 0.5, 1.0], rel=1e-5)


def test_only_the_last_rewards_of_a_prompt_are_kept() -> None:
    statistics = PromptStatistics(size=2, min_count=2)
    statistics.advantages(["a", "a", "a"], torch.tensor([9.0, 1.0, 3.0]))
    assert statistics.state_dict() == {"a": [1.0, 3.0]}
    other = PromptStatistics(size=2, min_count=2)
    other.load_state_dict(statistics.state_dict())
    # kept are 3 and 7: mean 5, deviation 2
    assert other.advantages(["a"], torch.tensor([7.0])).tolist() == pytest.approx([1.0], rel=1e-5)
