"""Laws of shared prefixes: what stands behind the same tokens is read once, and nobody can tell."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from test_packing import GPT, PACKS, SHAPE, assert_same, by_row, gradients
from tiny import make_causal
from torch import Tensor, nn

from rlcore.models import prefixes
from rlcore.models.forward import ActorCritic, predict
from rlcore.models.heads import TrunkValue
from rlcore.models.noise import disable_dropout
from rlcore.models.packing import longest_packed
from rlcore.models.prefixes import shared_prefixes
from rlcore.models.reading import CausalReader

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
"""Of these those that somebody reads: the last token of a row predicts nothing, but (9, 8, 7, 10) is read for row 6."""


def batch(side: str = "right") -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, mask and chosen tokens, all but the first two of each row."""
    tokens, mask = torch.full((len(ROWS), 9), 5), torch.zeros(len(ROWS), 9, dtype=torch.bool)
    for i, row in enumerate(ROWS):
        start = 9 - len(row) if side == "left" else 0
        tokens[i, start : start + len(row)] = torch.tensor(row)
        mask[i, start : start + len(row)] = True
    return tokens, mask, mask & (mask.cumsum(1) > 2)


def flat(rows: list[list[int]]) -> tuple[Tensor, Tensor, int]:
    width = max(map(len, rows))
    tokens = torch.tensor([token for row in rows for token in row])
    return tokens, torch.tensor([i * width + column for i, row in enumerate(rows) for column in range(len(row))]), width


def test_prefixes_are_the_hand_worked_ones() -> None:
    found = shared_prefixes(*flat([[4, 4], [4, 4, 5], [5], [4, 4, 5]]))
    assert found is not None
    assert found.first.tolist() == [0, 1, 4, 5]
    assert found.node.tolist() == [0, 1, 0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_prefixes_are_those_that_a_dictionary_finds(seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 9, (40,), generator=random).tolist()
    rows = [torch.randint(0, 3, (length,), generator=random).tolist() for length in lengths]
    numbers: dict[tuple[int, ...], int] = {}
    expected = [numbers.setdefault(tuple(row[: i + 1]), len(numbers)) for row in rows for i in range(len(row))]
    found = shared_prefixes(*flat(rows))
    assert found is not None
    assert found.node.tolist() == expected


def test_where_next_to_nothing_is_shared_nothing_is() -> None:
    assert shared_prefixes(*flat([[1, 2, 3, 4, 5], [2, 3, 4, 5, 6], [1, 9, 9, 9, 9]])) is None
    assert shared_prefixes(torch.tensor([], dtype=torch.long), torch.tensor([], dtype=torch.long), 0) is None


@pytest.mark.parametrize(
    ("base", "rows", "distinct"),
    [
        (1, [[3, 5, 7], [5, 3, 7], [3, 5, 7], [3, 5, 7]], 6),  # the order of tokens counts for nothing then
        (0, [[4, 4], [4, 4], [4, 4]], 2),  # nothing at all counts then
    ],
)
def test_prefixes_with_the_same_sum_are_told_apart(
    monkeypatch: pytest.MonkeyPatch, base: int, rows: list[list[int]], distinct: int
) -> None:
    monkeypatch.setattr(prefixes, "BASE", base)
    assert shared_prefixes(*flat(rows)) is None
    monkeypatch.undo()
    found = shared_prefixes(*flat(rows))
    assert found is not None
    assert len(found.first) == distinct


@pytest.mark.parametrize("name", PACKS)
def test_shared_is_each_sequence_alone(name: str) -> None:
    model = make_causal(PACKS[name]).eval()
    expected = by_row(model, *batch())
    wanted = gradients(model, expected)
    reader = CausalReader(longest_packed(model))
    for side in ("left", "right"):
        logits, run = predict(model, reader, *batch(side))
        assert run.inputs["input_ids"].shape == (1, READ)
        assert torch.allclose(logits, expected, rtol=1e-4, atol=2e-5)
    assert_same(gradients(model, logits), wanted, 2e-5)


def test_values_of_a_critic_of_its_own_are_shared_too() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).eval()
    value = TrunkValue(model)
    tokens, mask, chosen = batch()
    shared = ActorCritic(model, CausalReader(longest_packed(model)), value=value).eval()(tokens, mask, chosen)
    padded = ActorCritic(model, CausalReader(), value=value).eval()(tokens, mask, chosen)
    assert shared.values is not None
    torch.testing.assert_close(shared.values, padded.values, atol=1e-5, rtol=1e-5)


def test_rows_that_others_hold_need_no_attention() -> None:
    model = make_causal(hf.GPT2Config(**GPT)).eval()
    _, run = predict(model, CausalReader(longest_packed(model)), *batch())
    packing = run.inputs["packing"]
    assert len(packing.places) == 4 * packing.columns  # not the third and the fifth


@pytest.mark.parametrize(
    "config", [hf.GPT2Config(**GPT | {"resid_pdrop": 0.5}), hf.LlamaConfig(**SHAPE, attention_dropout=0.5)]
)
def test_dropout_is_drawn_for_every_token(config: hf.PretrainedConfig) -> None:
    model = make_causal(config)  # in evaluation mode
    reader = CausalReader(longest_packed(model))

    def num_read() -> int:
        width: int = predict(model, reader, *batch())[1].inputs["input_ids"].shape[1]
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
    _, run = predict(model, CausalReader(longest_packed(model)), *batch(), value=value)
    assert run.inputs["input_ids"].shape[1] > READ
