"""The losses of ILQL: pure functions of tensors, one number per token; the trainer reduces them.

Column t of every array is about token t. `values`, `rewards`, `logprobs` are float[B, T]; `q_values`, `q_logprobs` and
`target_q_values` float[K, B, T], one row for each of K Q-functions. Entries of tokens the policy did not choose are
arbitrary, NaN included: they change no result at a chosen token, and only chosen tokens are summed.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def next_values(values: Tensor, action_mask: Tensor) -> Tensor:
    """Return V' = V at the next chosen token of the sequence, 0 after the last: float[B, T].

    Tokens between two chosen ones, such as another speaker's turn, are not discounted.
    """
    width = action_mask.shape[1]
    columns = torch.arange(width, device=action_mask.device)
    at_or_after = torch.where(action_mask, columns, width).flip(1).cummin(1).values.flip(1)
    after = F.pad(at_or_after[:, 1:], (0, 1), value=width)
    return F.pad(values, (0, 1)).gather(1, after)


def q_loss(q_values: Tensor, values: Tensor, rewards: Tensor, action_mask: Tensor, *, gamma: float) -> Tensor:
    """Return sum_k (Q_k - (r + gamma sg V'))^2, the error of one step's backup.

    Snell et al. 2022, arXiv:2206.11871.
    """
    target = rewards + gamma * next_values(values.detach(), action_mask)
    return ((q_values - target) ** 2).sum(0)


def value_loss(values: Tensor, target_q_values: Tensor, *, tau: float) -> Tensor:
    """Return |tau - 1(Qbar < V)| (Qbar - V)^2 with Qbar = min_k target Q_k: V becomes an expectile of Qbar.

    tau = 1/2 gives half the squared error and so the mean over the data; tau -> 1 the best of its actions.
    Kostrikov et al. 2021, arXiv:2110.06169.
    """
    error = lowest(target_q_values) - values
    return torch.where(error < 0, 1 - tau, tau) * error**2


def cql_loss(q_logprobs: Tensor) -> Tensor:
    """Return sum_k -log softmax(Q_k)[a], which keeps Q low for tokens that are not in the data.

    Kumar et al. 2020, arXiv:2006.04779, in the form of Snell et al. 2022.
    """
    return -q_logprobs.sum(0)


def awac_loss(logprobs: Tensor, values: Tensor, target_q_values: Tensor, *, beta: float) -> Tensor:
    """Return -sg(exp(beta (Qbar - V))) log pi: imitation, weighted by the advantage if beta > 0.

    Nair et al. 2020, arXiv:2006.09359.
    """
    weight = (beta * (lowest(target_q_values) - values.detach())).exp()
    return -weight * logprobs


def lowest(target_q_values: Tensor) -> Tensor:
    """Return Qbar, the minimum over the target Q-heads, without gradient: float[K, B, T] -> float[B, T]."""
    return target_q_values.detach().min(0).values
