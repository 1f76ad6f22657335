from __future__ import annotations

import pytest
import torch

from rlcore.errors import MissingColumn, ModelError
from rlcore.types import PolicyOutputs, Trajectories

T, F = True, False


def ragged() -> Trajectories:
    batch = Trajectories.stack(
        [[1, 2, 3], [4, 5], [6, 7, 8, 9, 10]],
        [[F, T, T], [F, T], [F, F, T, F, T]],
        ended=[True, False, True],
        pad_id=31,
    )
    return batch.with_columns(rewards=torch.arange(15.0).reshape(3, 5), scores=torch.tensor([10.0, 20.0, 30.0]))


def test_ragged_sequences_are_padded_on_the_right() -> None:
    batch = ragged()
    assert batch.tokens.tolist() == [[1, 2, 3, 31, 31], [4, 5, 31, 31, 31], [6, 7, 8, 9, 10]]
    assert batch.mask.tolist() == [[T, T, T, F, F], [T, T, F, F, F], [T] * 5]
    assert batch.action_mask.tolist() == [[F, T, T, F, F], [F, T, F, F, F], [F, F, T, F, T]]
    assert batch.ended.tolist() == [T, F, T]
    assert batch.num_actions.tolist() == [2, 1, 2]
    assert len(batch) == 3


def test_demonstrations_count_as_ended_unless_set_otherwise() -> None:
    assert Trajectories.stack([[1, 2]], [[F, T]]).ended.tolist() == [T]


def test_masks_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2\] tokens with action masks of \[3\]"):
        Trajectories.stack([[1, 2]], [[F, T, T]])
    with pytest.raises(ValueError, match=r"\[2, 1\] tokens with action masks of \[2\]"):
        Trajectories.stack([[1, 2], [1]], [[F, T]])
    with pytest.raises(ValueError, match="lengths must be equal"):  # the same total number
        Trajectories.stack([[1, 2], [1]], [[F], [F, T]])


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(MissingColumn, match="advantages") as caught:
        ragged()["advantages"]
    assert "scores" in str(caught.value)
    assert isinstance(caught.value, KeyError)
    assert "scores" in ragged()
    assert "advantages" not in ragged()


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_a_column_of_several_numbers_a_sequence_is_neither_trimmed_nor_padded(size: int) -> None:
    """The batch is 5 tokens wide, and two of its rows 3."""
    numbers = torch.arange(3.0 * size).reshape(3, size)
    batch = ragged().with_columns(each=numbers)
    narrow = batch.rows(torch.tensor([0, 1]))
    assert narrow.tokens.shape == (2, 3)
    assert torch.equal(narrow["each"], numbers[:2])
    assert torch.equal(narrow.trim()["each"], numbers[:2])
    first, second = batch.split(2)
    assert torch.equal(torch.cat([first["each"], second["each"]]), numbers)
    wide = batch.rows(torch.tensor([2]))
    joined = Trajectories.concat([wide, batch.rows(torch.tensor([1]))])
    assert joined["rewards"].shape == (2, 5)
    assert torch.equal(joined["each"], numbers[[2, 1]])


def test_selecting_columns_keeps_only_those() -> None:
    kept = ragged().with_only("scores")
    assert list(kept.columns) == ["scores"]
    assert torch.equal(kept.tokens, ragged().tokens)
    with pytest.raises(MissingColumn, match="values"):
        ragged().with_only("values")


def test_adding_columns_leaves_the_old_batch_alone() -> None:
    batch = ragged()
    new = batch.with_columns(scores=torch.zeros(3), more=torch.ones(3))
    assert batch["scores"].tolist() == [10, 20, 30]
    assert "more" not in batch
    assert new["scores"].tolist() == [0, 0, 0]


def test_selecting_rows_applies_to_every_array_and_drops_columns_of_padding() -> None:
    part = ragged().rows(torch.tensor([1, 0]))
    assert part.tokens.tolist() == [[4, 5, 31], [1, 2, 3]]
    assert part.action_mask.tolist() == [[F, T, F], [F, T, T]]
    assert part.ended.tolist() == [F, T]
    assert part["rewards"].tolist() == [[5, 6, 7], [0, 1, 2]]
    assert part["scores"].tolist() == [20, 10]


def test_rows_may_be_chosen_by_a_mask() -> None:
    assert ragged().rows(torch.tensor([T, F, F])).tokens.tolist() == [[1, 2, 3]]


def test_trimming_drops_padding_on_both_sides_and_nothing_else() -> None:
    batch = Trajectories(
        tokens=torch.tensor([[0, 0, 5, 6, 0], [0, 3, 4, 0, 0]]),
        mask=torch.tensor([[F, F, T, T, F], [F, T, T, F, F]]),
        action_mask=torch.tensor([[F, F, F, T, F], [F, F, T, F, F]]),
        ended=torch.tensor([T, T]),
        columns={"values": torch.arange(10.0).reshape(2, 5), "scores": torch.tensor([1.0, 2.0])},
    ).trim()
    assert batch.tokens.tolist() == [[0, 5, 6], [3, 4, 0]]
    assert batch.mask.tolist() == [[F, T, T], [T, T, F]]
    assert batch.action_mask.tolist() == [[F, F, T], [F, T, F]]
    assert batch["values"].tolist() == [[1, 2, 3], [6, 7, 8]]
    assert batch["scores"].tolist() == [1, 2]


def test_a_batch_without_padding_around_it_is_trimmed_to_itself() -> None:
    batch = ragged()
    assert batch.trim() is batch


def test_splitting_visits_every_sequence_once_in_order() -> None:
    parts = list(ragged().split(2))
    assert [part.tokens.tolist() for part in parts] == [[[1, 2, 3], [4, 5, 31]], [[6, 7, 8, 9, 10]]]
    assert torch.cat([part["scores"] for part in parts]).tolist() == [10, 20, 30]


def test_concatenated_batches_are_as_wide_as_the_widest() -> None:
    narrow = Trajectories.stack([[1, 2]], [[F, T]], ended=[False]).with_columns(
        values=torch.tensor([[0.0, 5.0]]), scores=torch.tensor([1.0])
    )
    wide = Trajectories.stack([[3, 4, 5], [6, 7, 8]], [[F, T, T], [F, F, T]]).with_columns(
        values=torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 3.0]]), scores=torch.tensor([2.0, 3.0])
    )
    batch = Trajectories.concat([narrow, wide])
    assert batch.tokens.tolist() == [[1, 2, 0], [3, 4, 5], [6, 7, 8]]
    assert batch.mask.tolist() == [[T, T, F], [T, T, T], [T, T, T]]
    assert batch.action_mask.tolist() == [[F, T, F], [F, T, T], [F, F, T]]
    assert batch.ended.tolist() == [F, T, T]
    assert batch["values"].tolist() == [[0, 5, 0], [0, 1, 2], [0, 0, 3]]
    assert batch["scores"].tolist() == [1, 2, 3]


def test_splitting_and_concatenating_gives_the_batch_back() -> None:
    batch = Trajectories.concat(list(ragged().split(1)))
    assert batch.tokens[batch.mask].tolist() == ragged().tokens[ragged().mask].tolist()
    assert torch.equal(batch.action_mask, ragged().action_mask)


def test_an_extended_batch_has_one_more_chosen_token_after_the_last_real_one() -> None:
    longer = ragged().extended()
    assert longer.action_mask.tolist() == [
        [F, T, F, T, F, F],
        [F, T, T, F, F, F],
        [F, F, T, F, F, T],
    ]
    assert longer.tokens[:, :5].tolist() == ragged().tokens.tolist()
    assert longer.ended.tolist() == [T, F, T]


def test_the_further_token_of_an_extended_batch_does_not_count_as_real() -> None:
    assert ragged().extended().mask[:, :5].tolist() == ragged().mask.tolist()
    assert not ragged().extended().mask[:, 5].any()


@pytest.mark.parametrize("lacking", [0, 1])
def test_concatenating_batches_with_different_columns_is_an_error(lacking: int) -> None:
    parts = [Trajectories.stack([[1, 2]], [[F, T]]).with_columns(values=torch.zeros(1, 2)) for _ in range(2)]
    parts[lacking] = Trajectories.stack([[1, 2]], [[F, T]])
    with pytest.raises(MissingColumn, match="values"):
        Trajectories.concat(parts)


def test_action_tokens_are_the_chosen_ids_of_each_sequence():
    batch = Trajectories.stack(
        [[5, 6, 7, 8], [9], [1, 2]], [[False, True, False, True], [False], [False, True]], pad_id=7
    )
    assert batch.action_tokens == [[6, 8], [], [2]]


def test_a_column_is_renamed_and_the_others_stay() -> None:
    batch = ragged()
    renamed = batch.rename(rewards="token_rewards")
    assert set(renamed.columns) == {"token_rewards", "scores"}
    assert torch.equal(renamed["token_rewards"], batch["rewards"])
    assert set(batch.columns) == {"rewards", "scores"}


def test_an_output_that_is_missing_is_named_with_how_to_request_it() -> None:
    outputs = PolicyOutputs(torch.zeros(1, 2), values=torch.ones(1, 2))
    assert torch.equal(outputs.need("values"), torch.ones(1, 2))
    with pytest.raises(ModelError, match=r"no entropy: request it with policy.score\(batch, entropy=True\)"):
        outputs.need("entropy")
    with pytest.raises(ModelError, match=r"no q_values: build it with run.build\(heads=\{\.\.\.\}\)"):
        outputs.need("q_values")
