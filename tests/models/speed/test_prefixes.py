"""Tests of shared prefixes: tokens after the same prefix are computed once, and outputs do not change."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers as hf
from numpy.typing import NDArray
from test_packing import GPT, PACKS, SHAPE, assert_same, by_row, gradients
from tiny import make_causal
from torch import Tensor, nn

from rlcore.ops import disable_dropout
from rlcore_transformers.models.forward import ActorCritic, predict
from rlcore_transformers.models.heads import TrunkValue
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_transformers.models.speed.packing import NOTHING, Prefixes, distinct_prefixes, longest_packed

ROWS = (
    (7, 8, 9, 10, 11),
    (7, 8, 9, 10, 12, 13),
    (7, 8, 9),
    (9, 8, 7, 10),
    (7, 8, 9, 10, 11),
    (9, 8, 7, 10, 11),
)
"""Distinct prefixes: 5 of the first row, 2 more of the second, none of the third, 4, none, 1 more."""
READ = 4 + 1 + 3 + 1
"""Prefixes that are computed: a row's last token predicts nothing, but (9, 8, 7, 10) is needed by row 6."""


def batch(side: str = "right") -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, mask and chosen tokens: all but the first two of each row."""
    tokens, mask = torch.full((len(ROWS), 9), 5), torch.zeros(len(ROWS), 9, dtype=torch.bool)
    for i, row in enumerate(ROWS):
        start = 9 - len(row) if side == "left" else 0
        tokens[i, start : start + len(row)] = torch.tensor(row)
        mask[i, start : start + len(row)] = True
    return tokens, mask, mask & (mask.cumsum(1) > 2)


def padded(rows: list[list[int]]) -> NDArray[np.int64]:
    width = max(map(len, rows), default=0)
    return np.array([row + [NOTHING] * (width - len(row)) for row in rows]).reshape(len(rows), width)


def distinct(rows: NDArray[np.int64]) -> Prefixes:
    return distinct_prefixes(rows, rows != NOTHING)


def test_shared_prefixes_equal_those_worked_by_hand() -> None:
    order, owned = distinct(padded([[5, 6], [4, 4], [4, 4, 5], [5], [4, 4, 5]]))
    read = dict(zip(order.tolist(), owned.sum(1).tolist(), strict=True))
    # One of the three rows that begin with 4, 4 computes it; one of the two equal rows the 5; one of two 5s the 5.
    assert sorted(read[row] for row in (1, 2, 4)) in ([0, 0, 3], [0, 1, 2])
    assert sorted(read[row] for row in (0, 3)) in ([0, 2], [1, 1])
    assert owned.sum() == 5


@pytest.mark.parametrize("seed", range(5))
def test_shared_prefixes_equal_those_found_with_a_set(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (40,), generator=random).tolist()
    rows = [torch.randint(0, 3, (length,), generator=random).tolist() for length in lengths]
    order, owned = distinct(padded(rows))
    assert sorted(order.tolist()) == list(range(40))
    read = [
        tuple(rows[row][: column + 1]) for row, own in zip(order, owned, strict=True) for column in own.nonzero()[0]
    ]
    assert len(read) == len(set(read))  # each once
    assert set(read) == {tuple(row[: i + 1]) for row in rows for i in range(len(row))}
    before: list[int] = []
    for row, own in zip(order, owned, strict=True):  # tokens not computed follow the same prefix as above
        for column in range(len(rows[row])):
            assert own[column] or rows[row][: column + 1] == before[: column + 1]
        before = rows[row]


def test_rows_with_hardly_any_common_prefix_are_not_shared() -> None:
    rows = padded([[2, 2, 3, 4, 5], [1, 3, 4, 5, 6], [2, 9, 9, 9, 9]])
    order, owned = distinct(rows)
    assert order.tolist() == [0, 1, 2]
    assert owned.all()
    assert distinct(padded([])).owned.shape == (0, 0)


@pytest.mark.parametrize("name", PACKS)
def test_scores_with_shared_prefixes_equal_those_of_each_sequence_alone(name: str) -> None:
    model = make_causal(PACKS[name]).eval()
    expected = by_row(model, *batch())
    wanted = gradients(model, expected)
    layout = CausalLayout(longest_packed(model))
    for side in ("left", "right"):
        logits, run = predict(model, layout, *batch(side))
        assert run.inputs["input_ids"].shape == (1, READ)
        assert torch.allclose(logits, expected, rtol=1e-5, atol=1e-5)
    assert_same(gradients(model, logits), wanted, 1e-5)


def test_values_of_a_critic_of_its_own_are_shared_too() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).eval()
    value = TrunkValue(model)
    tokens, mask, chosen = batch()
    shared = ActorCritic(model, CausalLayout(longest_packed(model)), value=value).eval()(tokens, mask, chosen)
    padded = ActorCritic(model, CausalLayout(), value=value).eval()(tokens, mask, chosen)
    assert shared.values is not None
    torch.testing.assert_close(shared.values, padded.values, atol=1e-5, rtol=1e-5)


def test_rows_that_are_prefixes_of_others_get_no_attention_of_their_own() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).eval()
    _, run = predict(model, CausalLayout(longest_packed(model)), *batch())
    packing = run.inputs["packing"]
    assert len(packing.indices) == 2 * packing.columns  # row 2 without its last token, and row 4, contain all


@pytest.mark.parametrize(
    "config", [hf.GPT2Config(**GPT | {"resid_pdrop": 0.5}), hf.LlamaConfig(**SHAPE, attention_dropout=0.5)]
)
def test_dropout_is_drawn_for_every_token(config: hf.PretrainedConfig) -> None:
    model = make_causal(config)  # in evaluation mode
    layout = CausalLayout(longest_packed(model))

    def num_read() -> int:
        width: int = predict(model, layout, *batch())[1].inputs["input_ids"].shape[1]
        return width

    assert num_read() == READ
    model.train()
    assert num_read() > READ
    disable_dropout(model)
    assert num_read() == READ


def test_dropout_of_a_critic_is_drawn_for_every_token() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).train()
    value = TrunkValue(model).train()
    value.head.rise = nn.Sequential(nn.Dropout(0.5), value.head.rise)  # type: ignore[assignment]
    _, run = predict(model, CausalLayout(longest_packed(model)), *batch(), value=value)
    assert run.inputs["input_ids"].shape[1] > READ


def test_a_negative_token_id_is_an_error_with_shared_prefixes() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).eval()
    tokens = torch.tensor([[1, 2, -1, 4]])
    with pytest.raises(IndexError, match="out of range"):
        predict(
            model, CausalLayout(longest_packed(model)), tokens, tokens < 9, torch.tensor([[False, True, True, True]])
        )
