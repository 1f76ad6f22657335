"""Tests of grouped attention: the same outputs and gradients as one padded rectangle, with little padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.types import Trajectories
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_transformers.models.speed import packing
from rlcore_transformers.models.speed import packing as attention_groups
from rlcore_transformers.models.speed.packing import AttentionGroups, Packing, pack

LENGTHS = [2, 9, 3, 9, 1, 4, 8, 3]


def price(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Set the cost of an additional attention call."""
    for module in (packing, attention_groups):
        monkeypatch.setattr(module, "CALL", call)


def batch_of(lengths: list[int], *, left: bool = False, alike: bool = False) -> Trajectories:
    torch.manual_seed(0)
    columns = torch.arange(max(lengths) + 2)
    mask = columns < torch.tensor(lengths)[:, None]
    if left:
        mask = mask.flip(1)
    tokens = torch.full(mask.shape, 3) if alike else torch.randint(3, 9, mask.shape)
    action_mask = mask & (mask.cumsum(1) > 1)
    return Trajectories(tokens, mask, action_mask, torch.ones(len(lengths), dtype=torch.bool))


def test_attention_groups_equal_those_worked_by_hand() -> None:
    # rows of 1, 3 and 2 tokens, with indices 0 | 1 2 3 | 4 5 in a rectangle of width 3; padding is 0
    indices, positions = torch.tensor([0, 0, 0, 1, 2, 3, 4, 5, 0]), torch.tensor([0, 3, 4, 5, 6, 7])
    lengths = torch.tensor([1, 3, 2])
    each = AttentionGroups.of(indices, positions, lengths, width=attention_groups.CALL)  # a call costs one position
    # 3 + (2 * 2) positions and 2 calls cost 9, as do three groups of 3 + 2 + 1 and 3 calls; one of 9 and 1 call: 10
    assert sum(rows * columns for rows, columns in each.shapes) + len(each.shapes) == 9
    apart = AttentionGroups.of(indices, positions, lengths, width=10 * attention_groups.CALL)  # a call costs nothing
    assert apart.shapes == ((1, 3), (1, 2), (1, 1))
    assert apart.indices.tolist() == [1, 2, 3, 4, 5, 0]
    assert apart.positions.tolist() == [5, 0, 1, 2, 3, 4]


def test_a_group_of_several_lengths_is_as_wide_as_its_longest_row() -> None:
    # rows of 2, 6 and 3 tokens, 0 1 | 2 .. 7 | 8 9 10, in a rectangle of width 6; a call costs two positions
    indices = torch.tensor([0, 1, 0, 0, 0, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 0, 0])
    positions = torch.tensor([0, 1, 6, 7, 8, 9, 10, 11, 12, 13, 14])
    groups = AttentionGroups.of(indices, positions, torch.tensor([2, 6, 3]), width=attention_groups.CALL // 2)
    # 6 + (2 * 3) positions and 2 calls cost 16; three groups cost 11 + 6, one 18 + 2
    assert groups.shapes == ((1, 6), (2, 3))
    assert groups.indices.tolist() == [2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1, 0]
    assert groups.positions.tolist() == [9, 10, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def attended(made: Packing, heads: int, groups: int) -> list[Tensor]:
    """Return the attention outputs and the gradients of queries, keys and values."""
    torch.manual_seed(1)
    count = len(made.positions)
    q, k, v = (torch.randn(1, number, count, 4, requires_grad=True) for number in (heads, groups, groups))
    mixed = made.attend(q, k, v, dropout=0.0, scaling=None)
    return [mixed, *torch.autograd.grad((mixed * torch.randn(mixed.shape)).sum(), [q, k, v])]


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("alike", [False, True], ids=["", "shared"])
def test_groups_change_neither_values_nor_gradients(
    monkeypatch: pytest.MonkeyPatch, kv_heads: int, alike: bool
) -> None:
    batch, said = batch_of(LENGTHS, alike=alike), []
    for call, shapes in (
        (10**9, None),
        (16 * 6, ((3, 9), (5, 4))),
        (1, ((2, 9), (1, 8), (1, 4), (2, 3), (1, 2), (1, 1))),
    ):
        price(monkeypatch, call)
        made = pack(batch.tokens, batch.mask, share=True).inputs["packing"]
        said.append(attended(made, 4, kv_heads))
        if not alike:  # equal sequences are computed as one row
            assert [groups.shapes for groups in made._groups.values()] == ([] if shapes is None else [shapes])
    for in_groups in said[1:]:
        for one, other in zip(said[0], in_groups, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_the_grouping_of_attention_does_not_change_the_outputs(
    monkeypatch: pytest.MonkeyPatch, tiny_model: PreTrainedModel, char_tokenizer: Any, left: bool
) -> None:
    policy = build_causal_lm(tiny_model, CausalLMConfig(), tokenizer=char_tokenizer)
    policy.module.eval()
    batch, said = batch_of(LENGTHS, left=left), []
    for call in (10**9, 16 * 6, 1):
        price(monkeypatch, call)
        logprobs = policy.score(batch).logprobs
        policy.module.zero_grad()
        (logprobs * torch.linspace(-1, 1, logprobs.numel()).view_as(logprobs)).sum().backward()
        said.append([logprobs.detach(), *(p.grad.clone() for p in policy.module.parameters() if p.grad is not None)])
    assert len(said[0]) > 1
    for in_groups in said[1:]:
        for one, other in zip(said[0], in_groups, strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


def test_rows_of_equal_length_are_not_divided_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    price(monkeypatch, 1)
    batch = batch_of([5, 5, 5])
    made = pack(batch.tokens, batch.mask).inputs["packing"]
    attended(made, 4, 4)
    assert not made._groups
