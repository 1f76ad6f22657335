"""Tensor maths shared by algorithms: pure functions of torch alone, with keyword-only hyper-parameters.

Shapes: B sequences, T tokens, N chosen tokens, V vocabulary. Position t of every array refers to token t
(see `rlcore.types`).

Also in this file: detect and disable stochastic layers: dropout, layerdrop and router jitter.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def predicting(action_mask: Tensor) -> Tensor:
    """Return the mask of positions whose logits predict the chosen tokens: each is one before its token.

    All code shifts logits against labels by this function. The real tokens of a sequence are contiguous and the first
    is never chosen, so the selected positions have the same row-major order as the chosen tokens.

    Args:
        action_mask: bool[B, T].

    Returns:
        bool[B, T] with as many True entries as `action_mask`.
    """
    return torch.cat([action_mask[:, 1:], torch.zeros_like(action_mask[:, :1])], 1)


def needed(mask: Tensor, rows: Tensor) -> Tensor:
    """Return the mask of tokens that a causal model needs as input: each sequence up to its last position in `rows`.

    Tokens after that position do not affect the outputs at `rows`, for example the last token of a sequence. The first
    real token of a sequence is always included, so that a batch without chosen tokens is not empty.

    Args:
        mask: bool[B, T], real tokens.
        rows: bool[B, T], positions whose outputs are used.

    Returns:
        bool[B, T].
    """
    first = mask & (mask.cumsum(1) == 1)
    return first | (rows.flip(1).cumsum(1).flip(1) > 0)


def spread(flat: Tensor, action_mask: Tensor) -> Tensor:
    """Scatter float[N], one number per chosen token in row-major order, to the tokens' positions: float[B, T]."""
    return flat.new_zeros(action_mask.shape).masked_scatter(action_mask, flat)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return log softmax(logits)[token] without storing log-probs of the whole vocabulary.

    Args:
        logits: float[N, V].
        tokens: long[N].

    Returns:
        float32[N].
    """
    return -F.cross_entropy(logits.float(), tokens, reduction="none")


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy of softmax(logits) in nats: float[N, V] -> float32[N]."""
    logprobs = F.log_softmax(logits.float(), -1)
    return -(logprobs.exp() * logprobs).sum(-1)


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Sum the entries of `values` that `mask` selects; other entries are ignored, even if NaN."""
    return values.masked_fill(~mask, 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average the entries of `values` that `mask` selects; 0 if it selects none."""
    return masked_sum(values, mask) / mask.sum().clamp(min=1)


def soundness(mask: Tensor, *values: Tensor) -> Tensor:
    """Return 1 if every entry of `values` that `mask` selects is finite, else NaN: float32[], on their device.

    A loss times this keeps its gradient, or has one of NaN, with which `Updater.step` makes no step on any process. A
    number that is not finite can otherwise vanish: sigmoid(inf) is 1, and a clipped ratio of 0 has no gradient.

    Args:
        mask: bool[...].
        values: of the same shape, such as losses and metrics of tokens.
    """
    finite = torch.stack([each.detach().float() for each in values]).isfinite() | ~mask
    return torch.where(finite.all(), 1.0, torch.nan)


def whiten(values: Tensor, mask: Tensor, *, min_std: float = 1e-4) -> Tensor:
    """Shift and scale the selected entries to mean 0 and population standard deviation 1; zero elsewhere.

    (A - mean) / max(std, min_std), with mean and std over the entries that `mask` selects. Entries that differ by
    rounding errors only stay near 0 instead of being scaled up to a deviation of 1.

    Args:
        values: float[...].
        mask: bool[...].
        min_std: smallest divisor, above 0, in the unit of `values`.
    """
    mean = masked_mean(values, mask)
    std = masked_mean((values - mean) ** 2, mask).sqrt()
    return ((values - mean) / std.clamp(min=min_std)).masked_fill(~mask, 0.0)


def kl_estimate(logprobs: Tensor, ref_logprobs: Tensor, *, estimator: str = "k1") -> Tensor:
    """Estimate KL(pi || ref) at each sampled token from the two log-probs of that token.

    With D = log pi - log ref: k1 = D (unbiased), k2 = D^2 / 2, k3 = exp(-D) - 1 + D (unbiased, never negative).
    Source: Schulman 2020, "Approximating KL divergence".

    Args:
        logprobs: float[...], under pi, from which the tokens were sampled.
        ref_logprobs: float[...], under the reference.
        estimator: "k1", "k2" or "k3".

    Raises:
        ValueError: `estimator` is none of these.
    """
    difference = logprobs - ref_logprobs
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference**2 / 2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    raise ValueError(f"estimator = {estimator!r}: must be one of k1, k2, k3")


def correction(
    old_logprobs: Tensor, sampled_logprobs: Tensor, mask: Tensor, *, kind: str, low: float, high: float
) -> Tensor:
    """Return weights for tokens whose sampler computed other log-probs than the trainer: float[B, T].

    With d = log pi_old - log pi_sampler: `token_truncate` clip(exp d_t, low, high); `token_mask` exp d_t inside
    [low, high], else 0; `sequence_truncate` and `sequence_mask` the same with exp(sum_t d_t); `geometric_mask` 1 where
    exp(mean_t d_t) lies inside, else 0.

    They correct the expectation over samples, apart from a clipped ratio, whose old policy is the trainer's. Yao et al.
    2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    Args:
        old_logprobs: float[B, T], the trainer's.
        sampled_logprobs: float[B, T], the sampler's.
        mask: bool[B, T].
        kind: one of the above.
        low: smallest weight.
        high: largest weight.

    Raises:
        ValueError: `kind` is none of the above.
    """
    gap = torch.where(mask, old_logprobs - sampled_logprobs, 0.0)
    subject, _, action = kind.partition("_")
    if subject == "sequence":
        gap = gap.sum(1, keepdim=True).expand_as(gap)
    elif subject == "geometric":
        gap = (gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(gap)
    elif subject != "token":
        raise ValueError(f"kind = {kind!r}: no such correction")
    weight = gap.exp()
    inside = (weight >= low) & (weight <= high)
    if subject == "geometric":
        return inside.float()
    return weight.clamp(low, high) if action == "truncate" else weight.where(inside, 0.0)


def full_kl(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """Return KL(pi || ref) over the whole vocabulary: float[N, V], float[N, V] -> float32[N]."""
    logprobs, ref_logprobs = F.log_softmax(logits.float(), -1), F.log_softmax(ref_logits.float(), -1)
    return (logprobs.exp() * (logprobs - ref_logprobs)).sum(-1)


def gae(
    rewards: Tensor,
    values: Tensor,
    action_mask: Tensor,
    *,
    gamma: float,
    lam: float,
    turn_gamma: float | None = None,
    turn_lam: float | None = None,
    bootstrap: Tensor | None = None,
    is_cut: Tensor | None = None,
) -> Tensor:
    """Return generalised advantage estimates over the chosen tokens of each sequence.

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lam A_{t+1},
    where t + 1 is the next *chosen* token: tokens between (of another speaker or a tool) are skipped. From the last
    token of a turn to the first of the next, `turn_gamma` and `turn_lam` take the place of gamma and lam.

    Args:
        rewards: float[B, T].
        values: float[B, T], V before each chosen token.
        action_mask: bool[B, T].
        gamma: discount, in [0, 1].
        lam: in [0, 1]; 0 is one-step TD, 1 is the Monte-Carlo return minus V.
        turn_gamma: discount between two turns, in [0, 1]; gamma if omitted.
        turn_lam: likewise, lam if omitted. With gamma = lam = 1, this is GAE over turns: a token's advantage is the
            rest of its turn's reward, plus V of the next turn, minus V of the token, and so on.
        bootstrap: float[B], V after the last chosen token; zero if omitted (the sequences have ended).
        is_cut: bool[B], True where a limit cut the sequence inside a turn, so that the token after the last chosen one
            would belong to the same turn and `gamma` discounts `bootstrap`; nowhere if omitted.

    Returns:
        float[B, T], zero where `action_mask` is False.

    Source: Schulman et al. 2016, arXiv:1506.02438, equation 16.
    """
    advantages = torch.zeros_like(values)
    following = values.new_zeros(len(values)) if bootstrap is None else bootstrap
    running = values.new_zeros(len(values))
    is_inside = torch.nn.functional.pad(action_mask[:, 1:], (0, 1))  # the next token belongs to the same turn
    if is_cut is not None:
        is_inside = is_inside | (place_last(torch.ones_like(values[:, 0]), action_mask) > 0) & is_cut[:, None]
    between = gamma if turn_gamma is None else turn_gamma
    discounts = torch.full_like(values, between).masked_fill(is_inside, gamma)
    weights = torch.full_like(values, between * (lam if turn_lam is None else turn_lam))
    weights = weights.masked_fill(is_inside, gamma * lam)
    for t in range(values.shape[1] - 1, -1, -1):
        chosen = action_mask[:, t]
        delta = rewards[:, t] + discounts[:, t] * following - values[:, t]
        running = torch.where(chosen, delta + weights[:, t] * running, running)
        following = torch.where(chosen, values[:, t], following)
        advantages[:, t] = running * chosen
    return advantages


def place_last(scores: Tensor, action_mask: Tensor) -> Tensor:
    """Put each sequence's score on its last chosen token, EOS included: float[B] -> float[B, T].

    A sequence without chosen tokens receives zeros; trainers refuse such sequences earlier.
    """
    following = action_mask.flip(1).cumsum(1).flip(1)
    return torch.where(action_mask & (following == 1), scores[:, None], scores.new_zeros(()))


_STOCHASTIC = ("layerdrop", "jitter_noise", "input_jitter_noise")
"""Attributes that hold the rate of layerdrop, or the width of router jitter in a mixture of experts."""


_found: WeakKeyDictionary[nn.Module, list[tuple[dict[str, Any], str]]] = WeakKeyDictionary()
"""Where a module keeps its dropout rates; cached, because a walk through all layers in every pass would be slow."""


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put `module` in evaluation mode, and each of its modules back in its own mode at the end."""
    training = [part for part in module.modules() if part.training]
    if training:
        module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def disable_dropout(module: nn.Module) -> None:
    """Set all rates of dropout, layerdrop and jitter to 0, so that training uses the distribution sampled from."""
    for holder, name in list(_stochastic_options(module)):
        holder[name] = 0.0


def is_stochastic(module: nn.Module) -> bool:
    """Return whether `module`, in its current mode, may return different outputs for the same tokens.

    Layers added after the first call are not checked, nor are rates that layers read from the model's configuration at
    run time.
    """
    if not module.training:
        return False
    rates = _found.get(module)
    if rates is None:
        rates = _found[module] = list(_stochastic_options(module))
    return any(holder[name] > 0 for holder, name in rates)


def _stochastic_options(module: nn.Module) -> Iterator[tuple[dict[str, object], str]]:
    """Yield the dictionary and key of every rate of dropout, layerdrop or jitter in `module`."""
    for part in module.modules():
        # Some dropout layers of peft are not subclasses of torch's.
        drops = isinstance(part, nn.modules.dropout._DropoutNd) or "Dropout" in type(part).__name__  # noqa: SLF001
        for name, value in vars(part).items():
            if not ((name == "p" and drops) or "dropout" in name or name in _STOCHASTIC):
                continue
            if isinstance(value, float):
                yield vars(part), name
            elif isinstance(value, dict):  # peft keeps one rate for each adapter, by its name
                yield from ((value, key) for key, held in value.items() if isinstance(held, float))
