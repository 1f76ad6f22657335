"""Tests of tiled log-probs: values and gradients equal log-softmax over all logits in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlcore_transformers.models.speed.fused_logprobs import LogitMap, TokenScores, score_tokens, whole_scores

ROWS, WIDTH, VOCABULARY = 7, 5, 23
TILES = [(7, 23), (3, 8), (1, 1), (2, 23), (7, 5), (100, 100)]
MAPS = [LogitMap(), LogitMap(scale=0.3), LogitMap(cap=2.0), LogitMap(scale=1.7, cap=3.0)]


def inputs(rows: int = ROWS, dtype: torch.dtype = torch.float64, *, bias: bool = True) -> tuple[Any, ...]:
    random = torch.Generator().manual_seed(rows)
    hidden, weight, offset = (
        torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((rows, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))
    )
    return hidden, weight, offset if bias else None, torch.randint(VOCABULARY, (rows,), generator=random)


def plainly(hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, logit_map: LogitMap) -> TokenScores:
    """Compute all logits, and apply the definitions."""
    logits = (hidden @ weight.T + (0 if bias is None else bias)) * logit_map.scale
    if logit_map.cap:
        logits = logit_map.cap * torch.tanh(logits / logit_map.cap)
    probabilities = logits.softmax(-1)
    chosen = torch.arange(len(tokens)), tokens
    return TokenScores(probabilities[chosen].log(), torch.special.entr(probabilities).sum(-1), logits[chosen])


def loss(scores: TokenScores, names: tuple[str, ...]) -> Tensor:
    total = torch.zeros((), dtype=scores.logprobs.dtype)
    for k, name in enumerate(names):
        said = getattr(scores, name)
        total = total + (said * torch.linspace(-1.0 + k, 2.0, len(said), dtype=said.dtype)).sum()
    return total


def gradients(scores: TokenScores, names: tuple[str, ...], given: tuple[Any, ...]) -> list[Tensor]:
    wanted = [tensor for tensor in given[:3] if tensor is not None]
    return list(torch.autograd.grad(loss(scores, names), wanted))


@pytest.mark.slow
@pytest.mark.parametrize("logit_map", MAPS, ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_fused_log_probs_and_gradients_equal_those_of_all_logits(
    rows: int, tile: tuple[int, int], logit_map: LogitMap
) -> None:
    for bias in (True, False):
        given = inputs(rows, bias=bias)
        expected = plainly(*given, logit_map)
        said = score_tokens(*given, logit_map=logit_map, entropy=True, tile=tile)
        torch.testing.assert_close(said, expected)
        for names in (("logprobs",), ("entropy",), ("chosen",), ("logprobs", "entropy", "chosen")):
            torch.testing.assert_close(gradients(said, names, given), gradients(expected, names, given))
            said = score_tokens(*given, logit_map=logit_map, entropy=True, tile=tile)
            expected = plainly(*given, logit_map)


@pytest.mark.parametrize("logit_map", MAPS, ids=str)
def test_gradients_equal_finite_differences(logit_map: LogitMap) -> None:
    hidden, weight, bias, tokens = inputs()

    def said(*given: Tensor) -> tuple[Tensor, ...]:
        logprobs, entropy, chosen = score_tokens(*given, tokens, logit_map=logit_map, entropy=True, tile=(3, 8))
        assert entropy is not None
        return logprobs, entropy, chosen

    assert torch.autograd.gradcheck(said, (hidden, weight, bias))


def test_large_logits_give_accurate_log_probs() -> None:
    logits = torch.tensor([[3000.0, 2999.0, -3000.0, 0.0], [-3000.0, -3001.0, -3002.0, -3003.0]])
    said = score_tokens(logits, torch.eye(4), None, torch.tensor([1, 3]), entropy=True, tile=(2, 1))
    exact = logits.double().log_softmax(-1)
    assert said.entropy is not None
    torch.testing.assert_close(said.logprobs, exact[[0, 1], [1, 3]].float(), rtol=1e-6, atol=0)
    torch.testing.assert_close(said.entropy, -(exact.exp() * exact).nan_to_num().sum(-1).float(), rtol=1e-5, atol=0)


def test_a_token_outside_the_vocabulary_has_no_log_prob() -> None:
    hidden, weight, bias, tokens = inputs()
    tokens[2] = VOCABULARY
    said = score_tokens(hidden, weight, bias, tokens, tile=(3, 8))
    assert said.logprobs.isnan().tolist() == [i == 2 for i in range(ROWS)]


def test_the_entropy_is_computed_on_request_only() -> None:
    assert score_tokens(*inputs()).entropy is None


def small(*given: Any) -> TokenScores:
    logprobs, chosen = whole_scores(*given, logit_map=LogitMap())
    return TokenScores(logprobs, None, chosen)


@pytest.mark.parametrize("score", [partial(score_tokens, tile=(3, 8)), small], ids=["tiles", "small"])
@pytest.mark.parametrize("frozen", [(0,), (1,), (2,), (1, 2), (0, 2)])
def test_frozen_weights_get_no_gradient(frozen: tuple[int, ...], score: Callable[..., TokenScores]) -> None:
    given, due = inputs(), inputs()
    for k in frozen:
        given[k].requires_grad_(False)
    loss(score(*given), ("logprobs",)).backward()
    loss(plainly(*due, LogitMap()), ("logprobs",)).backward()
    for k in range(3):
        if k in frozen:
            assert given[k].grad is None
        else:
            torch.testing.assert_close(given[k].grad, due[k].grad)


def test_weights_tied_to_the_input_get_both_gradients() -> None:
    _, weight, _, tokens = inputs()
    read = torch.arange(ROWS)
    expected = torch.autograd.grad(
        loss(plainly(F.embedding(read, weight), weight, None, tokens, LogitMap()), ("logprobs",)), weight
    )
    got = torch.autograd.grad(
        loss(score_tokens(F.embedding(read, weight), weight, None, tokens, tile=(3, 8)), ("logprobs",)), weight
    )
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("how", ["weights of few bits", "autocast"])
def test_products_of_bfloat16_are_summed_in_float32(how: str) -> None:
    autocast = how == "autocast"
    exact = inputs(dtype=torch.bfloat16)
    given = tuple(x.detach().to(torch.float32 if autocast else torch.bfloat16) for x in exact[:3])
    for tensor in given:
        tensor.requires_grad_()
    tokens, names = exact[3], ("logprobs", "entropy")
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        logits = F.linear(*given).float()  # rounded like the outputs of the model's own head
        said = score_tokens(*given, tokens, entropy=True, tile=(3, 8))
    assert said.entropy is not None
    chosen, entropy = logits.log_softmax(-1)[torch.arange(ROWS), tokens], torch.special.entr(logits.softmax(-1)).sum(-1)
    assert said.logprobs.dtype == said.entropy.dtype == torch.float32
    torch.testing.assert_close(said.logprobs, chosen, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(said.entropy, entropy, rtol=1e-5, atol=1e-5)
    for got, due in zip(
        gradients(said, names, given), gradients(TokenScores(chosen, entropy, chosen), names, given), strict=True
    ):
        assert got.dtype == given[0].dtype
        assert float((got - due).abs().max()) < 0.02 * float(due.abs().max())


class Largest(TorchDispatchMode):
    """Record the number of elements of the largest tensor created by any operation."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(each, Tensor):
                self.elements = max(self.elements, each.numel())
        return made


@pytest.mark.parametrize("entropy", [False, True])
@pytest.mark.parametrize("logit_map", [LogitMap(), LogitMap(scale=2.0, cap=3.0)], ids=str)
def test_no_tensor_of_all_logits_is_made_or_saved(entropy: bool, logit_map: LogitMap) -> None:
    rows, vocabulary, width, tile = 60, 500, 4, (16, 100)
    hidden, weight = torch.randn(rows, width, requires_grad=True), nn.Parameter(torch.randn(vocabulary, width))
    saved: list[int] = []
    largest = Largest()
    with largest, torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        said = score_tokens(hidden, weight, None, torch.arange(rows), logit_map=logit_map, entropy=entropy, tile=tile)
        loss(said, ("logprobs", "entropy") if entropy else ("logprobs",)).backward()
    # The weights and their gradient are the largest tensors; logits exist only as tiles.
    assert largest.elements <= max(vocabulary * width, tile[0] * tile[1]) < rows * vocabulary
    assert max(saved) <= vocabulary * width


def test_without_gradients_no_tensor_is_saved_for_the_backward_pass() -> None:
    saved: list[int] = []
    with torch.no_grad(), torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(1) or x, lambda x: x):
        said = score_tokens(*inputs(), entropy=True)
    assert not saved
    assert not said.logprobs.requires_grad
