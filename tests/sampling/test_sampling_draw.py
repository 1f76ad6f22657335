"""Tests of drawing tokens from logits: expected numbers come from numpy, scipy or manual calculation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore_transformers.sampling.draw import chosen_logprobs, draw, restrict

NEXT_BELOW_ONE = 1 - 2**-53


def by_hand(logits: np.ndarray, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """Compute the probabilities of one row of logits, token by token."""
    order = np.argsort(-logits, kind="stable")
    scaled = logits.astype(np.float64) / temperature
    kept = list(order[:top_k]) if top_k else list(order)
    weight = {token: np.exp(scaled[token] - scaled.max()) for token in kept}
    total, reached, nucleus = sum(weight.values()), 0.0, []
    for token in kept:
        if reached >= top_p:
            break
        nucleus.append(token)
        reached += weight[token] / total
    out = np.zeros(len(logits))
    for token in nucleus:
        out[token] = weight[token]
    return out / out.sum()


def chi_squared(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the p-value of `counts` under `probabilities`, with rare tokens merged."""
    from scipy import stats

    assert counts[probabilities == 0].sum() == 0
    total = counts.sum()
    common = probabilities * total >= 10
    observed, expected = list(counts[common]), list(probabilities[common] * total)
    rare = probabilities[~common].sum() * total
    if rare >= 5:
        observed.append(counts[~common].sum())
        expected.append(rare)
    expected = np.array(expected) * sum(observed) / sum(expected)
    return float(stats.chisquare(observed, expected).pvalue)


SETTINGS = [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7}, {"temperature": 1.7, "top_k": 9, "top_p": 0.8}]


@pytest.mark.parametrize("options", SETTINGS)
def test_frequencies_are_those_of_the_distribution_asked_for(options: dict) -> None:
    generator = torch.Generator().manual_seed(7)
    row = torch.randn(37, generator=generator) * 2
    logits = restrict(row.expand(40_000, -1), **options)
    tokens, logprobs = draw(logits, torch.rand(40_000, dtype=torch.float64, generator=generator))
    wanted = by_hand(row.numpy(), **options)
    assert chi_squared(np.bincount(tokens.numpy(), minlength=37), wanted) > 1e-3
    np.testing.assert_allclose(logprobs.exp().numpy(), wanted[tokens.numpy()], rtol=1e-4)


@pytest.mark.parametrize("vocabulary", [1, 2, 5])
def test_top_k_keeps_exactly_k_tokens_up_to_the_whole_vocabulary(vocabulary: int) -> None:
    logits = torch.stack([torch.randperm(vocabulary, generator=torch.Generator().manual_seed(i)) for i in range(3)])
    for top_k in range(vocabulary + 3):
        kept = restrict(logits.float(), top_k=top_k).isfinite()
        number = min(top_k, vocabulary) if top_k else vocabulary
        assert kept.sum(1).tolist() == [number] * 3
        assert torch.equal(kept, logits >= vocabulary - number)


@pytest.mark.parametrize("vocabulary", [1, 2, 255, 1024, 1025, 1280, 50257])
def test_the_draw_inverts_the_running_sum_at_every_size(vocabulary: int) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    logits = torch.randn(64, vocabulary, generator=generator) * 3
    uniforms = torch.rand(64, dtype=torch.float64, generator=generator)
    weights = np.exp(logits.numpy().astype(np.float64))
    running = weights.cumsum(1) / weights.sum(1, keepdims=True)
    tokens, logprobs = (array.numpy() for array in draw(logits, uniforms))
    below = np.where(tokens > 0, running[np.arange(64), tokens - 1], 0.0)
    above = running[np.arange(64), tokens]
    assert (below <= uniforms.numpy() + 1e-6).all()
    assert (uniforms.numpy() <= above + 1e-6).all()
    reference = np.log(weights / weights.sum(1, keepdims=True))[np.arange(64), tokens]
    np.testing.assert_allclose(logprobs, reference, atol=2e-6)


@pytest.mark.parametrize("vocabulary", [7, 3000])
def test_a_token_of_probability_zero_is_never_drawn(vocabulary: int) -> None:
    logits = torch.full((4, vocabulary), float("-inf"))
    logits[0, vocabulary - 3] = 0.0  # zeros on both sides
    logits[1, 0], logits[1, vocabulary - 2] = 1.0, 1.0
    logits[2, vocabulary - 1] = -5.0
    logits[3, 3], logits[3, 4], logits[3, 5] = -9.0, 9.0, -9.0  # the most likely is neither first nor last
    first, _ = draw(logits, torch.zeros(4, dtype=torch.float64))
    last, logprobs = draw(logits, torch.full((4,), NEXT_BELOW_ONE, dtype=torch.float64))
    assert first.tolist() == [vocabulary - 3, 0, vocabulary - 1, 3]
    assert last.tolist() == [vocabulary - 3, vocabulary - 2, vocabulary - 1, 5]
    torch.testing.assert_close(logprobs, torch.tensor([0.0, -np.log(2), 0.0, -18.0], dtype=torch.float32))


def test_the_rare_half_of_a_large_vocabulary_is_drawn_as_often_as_it_should_be() -> None:
    from scipy import stats

    vocabulary, draws = 50257, 2000
    logits = torch.zeros(1, vocabulary)
    logits[0, 0] = np.log(vocabulary - 1)  # half of the probability on one token, half on 50256 tokens of 1e-5 each
    generator = torch.Generator().manual_seed(3)
    uniforms = torch.rand(draws, dtype=torch.float64, generator=generator)
    tokens = torch.cat([draw(logits.expand(200, -1), part)[0] for part in uniforms.split(200)])
    tail = tokens[tokens > 0]
    assert abs(len(tail) / draws - 0.5) < 4 * 0.5 / draws**0.5
    assert stats.kstest(tail.double().numpy() / vocabulary, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("vocabulary", [900, 50257])
def test_tokens_too_rare_for_single_precision_keep_their_own_probabilities(vocabulary: int) -> None:
    logits = torch.full((1, vocabulary), -18.0)  # e^-18 is less than a quarter of the spacing of floats at 1
    logits[0, 0] = 0.0
    weight = np.exp(-18.0)
    from_the_end = torch.arange(5, dtype=torch.float64) + 0.5
    tokens, _ = draw(logits.expand(5, -1), 1 - from_the_end * weight / (1 + (vocabulary - 1) * weight))
    assert tokens.tolist() == [vocabulary - 1 - i for i in range(5)]


def test_forbidden_tokens_are_not_drawn_and_the_rest_is_renormalised() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0]])
    restricted = restrict(logits, forbidden=torch.tensor([0]))
    assert restricted.softmax(1)[0].tolist() == pytest.approx([0.0, 1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert logits[0, 0] == 2.0


def test_the_nucleus_is_found_in_rows_that_need_few_tokens_or_many() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([[0.1], [1.0], [6.0], [1.0]])  # most of the vocabulary, some thousands, a few, thousands
    rows = torch.randn(4, 20_000, generator=generator) * scales
    for row, kept in zip(rows, restrict(rows, top_p=0.8).isfinite(), strict=True):
        assert abs(int(kept.sum()) - int((by_hand(row.numpy(), top_p=0.8) > 0).sum())) <= 1
        assert row[kept].min() > row[~kept].max()


def test_logprobs_of_chosen_tokens_are_log_softmax() -> None:
    logits = torch.tensor([[0.0, np.log(3.0)], [np.log(9.0), 0.0]], dtype=torch.float32)
    expected = torch.tensor([np.log(0.75), np.log(0.1)], dtype=torch.float32)
    torch.testing.assert_close(chosen_logprobs(logits, torch.tensor([1, 1])), expected)
