"""The losses of preferences: pure functions of tensors, one number per pair (or per answer, of `kto`).

`chosen` and `rejected` are float[P]: log pi(answer) - log ref(answer) of the two answers of P pairs. Which of them are
sums and which means over the tokens of an answer is up to the caller (`PairObjective`).

Also in this file: pairs from scored answers: a pure function of tensors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def sigmoid_loss(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """Return -(1 - e) log sigmoid(x) - e log sigmoid(-x), x = beta (chosen - rejected): float[P].

    e is the assumed probability that a label is wrong. Rafailov et al. 2023, arXiv:2305.18290; with e > 0, cDPO,
    Mitchell 2023. Of means over tokens, the length-normalised loss of Tülu 3, Lambert et al. 2024, arXiv:2411.15124.
    """
    x = beta * (chosen - rejected)
    return -(1 - label_smoothing) * F.logsigmoid(x) - label_smoothing * F.logsigmoid(-x)


def robust_loss(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """Return [-(1 - e) log sigmoid(x) + e log sigmoid(-x)] / (1 - 2 e): an unbiased estimate with labels flipped by e.

    It has no lower bound. e in [0, 1/2). Chowdhury et al. 2024, arXiv:2403.00409.
    """
    x = beta * (chosen - rejected)
    biased = -(1 - label_smoothing) * F.logsigmoid(x) + label_smoothing * F.logsigmoid(-x)
    return biased / (1 - 2 * label_smoothing)


def hinge_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return max(0, 1 - beta (chosen - rejected)). Zhao et al. 2023, arXiv:2305.10425, with a margin of 1."""
    return torch.relu(1 - beta * (chosen - rejected))


def ipo_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return (chosen - rejected - 1 / (2 beta))^2. Azar et al. 2023, arXiv:2310.12036, eq. 17."""
    return (chosen - rejected - 1 / (2 * beta)) ** 2


def exo_loss(chosen: Tensor, rejected: Tensor, *, beta: float, label_smoothing: float) -> Tensor:
    """Return the KL divergence from (sigmoid(x), sigmoid(-x)) to (1 - e, e), x = beta (chosen - rejected).

    e above 0. Ji et al. 2024, arXiv:2402.00856, eq. 16.
    """
    x = beta * (chosen - rejected)
    won = torch.sigmoid(x) * (F.logsigmoid(x) - math.log(1 - label_smoothing))
    return won + torch.sigmoid(-x) * (F.logsigmoid(-x) - math.log(label_smoothing))


def apo_zero_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return 1 - sigmoid(beta chosen) + sigmoid(beta rejected): chosen answers likelier, rejected ones less likely.

    D'Oosterlinck et al. 2024, arXiv:2408.06266.
    """
    return 1 - torch.sigmoid(beta * chosen) + torch.sigmoid(beta * rejected)


def apo_down_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return sigmoid(beta chosen) + 1 - sigmoid(beta (chosen - rejected)): both less likely, rejected ones more so.

    D'Oosterlinck et al. 2024, arXiv:2408.06266.
    """
    return torch.sigmoid(beta * chosen) + 1 - torch.sigmoid(beta * (chosen - rejected))


def simpo_loss(chosen: Tensor, rejected: Tensor, *, beta: float, gamma: float) -> Tensor:
    """Return -log sigmoid(beta (chosen - rejected) - gamma), of mean log-probs. Meng et al. 2024, arXiv:2405.14734."""
    return -F.logsigmoid(beta * (chosen - rejected) - gamma)


def log_odds(mean_logprobs: Tensor) -> Tensor:
    """Return log(p / (1 - p)), p = exp(mean_logprobs), which must not be positive; finite also for p = 1."""
    below = mean_logprobs.clamp(max=-torch.finfo(mean_logprobs.dtype).eps)
    return below - torch.log(-torch.expm1(below))


def orpo_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return -beta log sigmoid(log odds of chosen - log odds of rejected), of mean log-probs.

    Hong et al. 2024, arXiv:2403.07691, eq. 7, where beta is called lambda.
    """
    return -beta * F.logsigmoid(log_odds(chosen) - log_odds(rejected))


def nca_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return -log sigmoid(beta chosen) - (log sigmoid(-beta chosen) + log sigmoid(-beta rejected)) / 2.

    It keeps the likelihood of chosen answers from falling with that of rejected ones. Chen et al. 2024,
    arXiv:2402.05369, the NCA loss for pairs.
    """
    both = F.logsigmoid(-beta * chosen) + F.logsigmoid(-beta * rejected)
    return -F.logsigmoid(beta * chosen) - both / 2


def bco_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return -log sigmoid(beta chosen) - log sigmoid(-beta rejected): a classifier of single answers.

    Jung et al. 2024, arXiv:2404.04656, without the reward shift delta, a running mean of the rewards.
    """
    return -F.logsigmoid(beta * chosen) - F.logsigmoid(-beta * rejected)


def sppo_loss(chosen: Tensor, rejected: Tensor, *, beta: float) -> Tensor:
    """Return (chosen - 1 / (2 beta))^2 + (rejected + 1 / (2 beta))^2: a step of self-play with certain labels.

    Wu et al. 2024, arXiv:2405.00675, eq. 4.7, where 1 / beta is called eta, with win probabilities of 1 and 0.
    """
    goal = 1 / (2 * beta)
    return (chosen - goal) ** 2 + (rejected + goal) ** 2


def discopop_loss(chosen: Tensor, rejected: Tensor, *, beta: float, tau: float = 0.05) -> Tensor:
    """Return (1 - g) (-log sigmoid(x)) + g exp(-x), x = beta (chosen - rejected), g = sigmoid(x / tau).

    A logistic loss where the rejected answer is likelier, else an exponential one; neither convex nor monotonic. Lu et
    al. 2024, arXiv:2406.08414, the log-ratio modulated loss.
    """
    x = beta * (chosen - rejected)
    logistic = -F.logsigmoid(x) * torch.sigmoid(-x / tau)
    return logistic + torch.exp(F.logsigmoid(x / tau) - x)  # the product overflows where x is far below 0


def kto_loss(
    ratios: Tensor, labels: Tensor, kl: Tensor, *, beta: float, desirable: float = 1.0, undesirable: float = 1.0
) -> Tensor:
    """Return desirable (1 - sigmoid(beta (h - z))) of desirable answers, undesirable (1 - sigmoid(beta (z - h))) else.

    Args:
        ratios: h, float[B], log pi - log ref of each answer.
        labels: bool[B], True for a desirable answer.
        kl: z, float[], the mean of h over mismatched answers, at least 0, without gradient.
        beta: how sharply answers are compared with z.
        desirable: weight of desirable answers.
        undesirable: weight of the others.

    Ethayarajh et al. 2024, arXiv:2402.01306, eq. 7 and 8.
    """
    gain, loss = torch.sigmoid(beta * (ratios - kl)), torch.sigmoid(beta * (kl - ratios))
    return torch.where(labels, desirable * (1 - gain), undesirable * (1 - loss))


def mismatch(ratios: Tensor) -> Tensor:
    """Return z of `kto_loss`: the mean of the log-ratios of mismatched answers, at least 0: float[B] -> float[]."""
    return ratios.detach().mean().clamp(min=0)


def best_and_worst(scores: Tensor, known: Tensor, *, min_margin: float = 0.0) -> Tensor:
    """Return the rows of the best and the worst answer of each group, chosen and rejected in turn: long[2 K].

    K of the P groups have two answers whose scores differ by more than `min_margin`. Of equal scores the first answer
    counts. The rows number all P G answers, group after group.

    Args:
        scores: float[P, G], finite where they are known.
        known: bool[P, G], answers that have a score.
        min_margin: at least 0.
    """
    scores = scores.double()
    best = scores.masked_fill(~known, -torch.inf).max(1)
    worst = scores.masked_fill(~known, torch.inf).min(1)
    is_pair = (known.sum(1) > 1) & (best.values - worst.values > min_margin)
    starts = torch.arange(len(scores), device=scores.device) * scores.shape[1]
    return torch.stack([starts + best.indices, starts + worst.indices], 1)[is_pair].flatten()
