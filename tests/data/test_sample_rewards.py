from __future__ import annotations

import decimal
from typing import Any

import numpy as np
import pytest
import torch

from rlcore.errors import DataError, InputsError
from rlcore.types import Sample, SampleReward
from rlcore_transformers.data.pipelines import SAMPLES, build_sample_rewards

# A prompt of two tokens, an output of two, another speaker's token, an output of one; and a one-token sample.
TALK = Sample(tokens=(1, 2, 3, 4, 5, 6), action_mask=(False, False, True, True, False, True))
WORD = Sample(tokens=(1, 2), action_mask=(False, True))


def place(reward: Any, sample: Sample = TALK) -> SampleReward:
    (placed,) = build_sample_rewards([reward], [sample])
    return placed


@pytest.mark.parametrize(
    "reward",
    [2.5, np.float32(2.5), torch.tensor(2.5), np.array(2.5), decimal.Decimal("2.5"), {"reward": 2.5, "id": "x"}],
    ids=lambda reward: type(reward).__name__,
)
def test_a_single_reward_is_placed_on_the_last_chosen_token(reward: Any) -> None:
    assert place(reward) == SampleReward((0, 0, 0, 0, 0, 2.5), dense=False)


@pytest.mark.parametrize("form", [list, tuple, np.array, torch.tensor, lambda row: {"reward": row}])
def test_one_reward_per_output_is_placed_on_its_last_token(form: Any) -> None:
    assert place(form([1.0, -2.0])) == SampleReward((0, 0, 0, 1, 0, -2), dense=True)


def test_one_reward_per_chosen_token_is_placed_on_that_token() -> None:
    assert place([1, 2, 3]) == SampleReward((0, 0, 1, 2, 0, 3), dense=True)
    assert place([1, 2, 3]).total == 6


def test_a_list_of_one_reward_equals_a_single_reward() -> None:
    assert place([4], WORD) == place(4, WORD) == SampleReward((0, 4), dense=False)
    one_output = Sample(tokens=(1, 2, 3), action_mask=(False, True, True))
    assert place([4], one_output) == SampleReward((0, 0, 4), dense=False)


def test_rewards_may_come_from_any_kind_of_source(tmp_path: Any) -> None:
    def read(source: Any, samples: list[Sample]) -> list[SampleReward]:
        return SAMPLES.read_rewards(source, samples, {}, what="rewards")

    file = tmp_path / "rewards.jsonl"
    file.write_text('1\n[2, 3]\n{"reward": 4}\n')
    expected = [(0, 0, 0, 0, 0, 1), (0, 0, 0, 2, 0, 3), (0, 4)]
    assert [each.tokens for each in read(file, [TALK, TALK, WORD])] == expected
    table = tmp_path / "rewards.csv"
    table.write_text("text,reward\na,1.5\nb,-1\n")
    assert [each.total for each in read(str(table), [TALK, WORD])] == [1.5, -1]
    assert [each.total for each in read(torch.tensor([1, 2]), [TALK, WORD])] == [1, 2]


def test_the_reward_of_a_truncated_sample_stays_on_its_remaining_tokens() -> None:
    cut = Sample(tokens=(1, 2, 3), action_mask=(False, False, True), ended=False)
    assert place(2, cut).tokens == (0, 0, 2)
    with pytest.raises(DataError, match=r"it was truncated to data.max_sample_tokens, and so must be its rewards"):
        place([1, 2], cut)


@pytest.mark.parametrize(
    ("reward", "complaint"),
    [
        ([1, 2, 3, 4], r"rewards\[1\]: has 4 numbers, but .*2 output.* 3 tokens.* EOS .*; pass one .* 2 .* 3 for"),
        ([], r"rewards\[1\]: has 0 numbers"),
        ([1], r"rewards\[1\]: has 1 numbers"),
        ("good", r"rewards\[1\]: is 'good' \(str\), not a number"),
        (None, r"rewards\[1\]: is None"),
        ([1, None], r"rewards\[1\]\[1\]: is None"),
        ([[1], [2]], r"rewards\[1\]\[0\]: is \[1\]"),
        (float("nan"), r"rewards\[1\]: is nan, not a finite number"),
        ([0, float("inf")], r"rewards\[1\]\[1\]: is inf"),
        (1e39, r"not a finite number"),  # more than the float32 maximum
        (10**400, r"not a finite number"),
        (decimal.Decimal("sNaN"), r"not a finite number"),
        ({"score": 1}, r"rewards\[1\]: has no key 'reward', only 'score'"),
    ],
    ids=str,
)  # fmt: skip
def test_an_invalid_reward_of_a_sample_is_named(reward: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        build_sample_rewards([1.0, reward], [TALK, TALK])


def test_there_is_one_reward_for_each_sample() -> None:
    with pytest.raises(InputsError, match="rewards: has 1 entries for 2 samples; pass one for each"):
        build_sample_rewards([1.0], [TALK, TALK])
