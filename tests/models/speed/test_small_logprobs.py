"""Tests of log-probs from full logits in a single buffer: values and gradients equal those of log-softmax."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rlcore_transformers.models.speed.fused_logprobs import LogitMap, takes_small_logits, whole_scores

SHAPES = [(1, 1, 1), (3, 4, 7), (7, 5, 23), (5, 8, 1000), (2, 3, 5003)]


def inputs(
    rows: int = 7, width: int = 5, vocabulary: int = 23, dtype: torch.dtype = torch.float64, *, bias: bool = True
) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(rows)
    hidden, weight, offset = (
        torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((rows, width), (vocabulary, width), (vocabulary,))
    )
    return hidden, weight, offset if bias else None, torch.randint(vocabulary, (rows,), generator=random)


def plainly(hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    logits = scale * F.linear(hidden, weight, bias)
    each = torch.arange(len(tokens))
    return logits.log_softmax(-1)[each, tokens], logits[each, tokens]


def loss(said: tuple[Tensor, Tensor], which: tuple[int, ...]) -> Tensor:
    return sum(((said[k] * torch.linspace(k - 1.0, 2.0, len(said[k]))).sum() for k in which), torch.tensor(0.0))


@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
def test_small_log_probs_and_gradients_equal_those_of_log_softmax(
    shape: tuple[int, int, int], dtype: torch.dtype, tolerance: float, scale: float
) -> None:
    for bias in (True, False):
        given = inputs(*shape, dtype, bias=bias)
        said, due = whole_scores(*given, logit_map=LogitMap(scale)), plainly(*given, scale)
        torch.testing.assert_close(said, due, rtol=tolerance, atol=tolerance)
        wanted = [tensor for tensor in given[:3] if tensor is not None]
        for which in ((0,), (1,), (0, 1)):
            got, right = (torch.autograd.grad(loss(x, which), wanted, retain_graph=True) for x in (said, due))
            torch.testing.assert_close(got, right, rtol=tolerance, atol=tolerance)


def test_gradients_equal_finite_differences() -> None:
    *given, tokens = inputs()
    assert torch.autograd.gradcheck(lambda *x: whole_scores(*x, tokens, logit_map=LogitMap(0.7)), given)


def test_large_logits_give_accurate_log_probs() -> None:
    logits = torch.tensor([[3000.0, 2999.0, -3000.0, 0.0], [-3000.0, -3001.0, -3002.0, -3003.0]])
    for tokens in ([1, 3], [2, 0]):
        said, _ = whole_scores(logits, torch.eye(4), None, torch.tensor(tokens), logit_map=LogitMap())
        due = logits.double().log_softmax(-1)[[0, 1], tokens].float()
        torch.testing.assert_close(said, due, rtol=1e-6, atol=0)


def test_a_token_outside_the_vocabulary_has_no_log_prob_and_does_not_affect_others() -> None:
    hidden, weight, bias, tokens = inputs()
    due, _ = whole_scores(hidden, weight, bias, tokens, logit_map=LogitMap())
    stray = tokens.index_fill(0, torch.tensor([2]), 23).index_fill(0, torch.tensor([4]), -100)
    said, _ = whole_scores(hidden, weight, bias, stray, logit_map=LogitMap())
    assert said.isnan().tolist() == [i in (2, 4) for i in range(7)]
    torch.testing.assert_close(said[~said.isnan()], due[~said.isnan()])


def test_small_log_probs_allocate_the_logits_once() -> None:
    hidden, weight, _, tokens = inputs(40, 3, 500, torch.float32)
    with torch.profiler.profile(profile_memory=True) as profile:
        whole_scores(hidden, weight, None, tokens, logit_map=LogitMap())[0].sum().backward()
    made = [event.self_cpu_memory_usage for event in profile.events()]
    assert sum(size >= 4 * 40 * 500 for size in made) == 1


def test_small_log_probs_are_not_used_for_bfloat16_caps_or_entropies() -> None:
    weight = torch.zeros(2, 3)
    assert takes_small_logits(weight, LogitMap(2.0), entropy=False)
    assert not takes_small_logits(weight, LogitMap(), entropy=True)
    assert not takes_small_logits(weight, LogitMap(cap=3.0), entropy=False)
    assert not takes_small_logits(weight.bfloat16(), LogitMap(), entropy=False)
    assert not takes_small_logits(weight.to("meta"), LogitMap(), entropy=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert not takes_small_logits(weight, LogitMap(), entropy=False)
