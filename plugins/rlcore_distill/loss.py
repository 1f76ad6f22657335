"""The divergences of distillation: pure functions of log-probs. N tokens, K outcomes, V vocabulary.

`logprobs` are the student's, with gradients, and `teacher_logprobs` the teacher's, over the same outcomes; both rows
sum to 1 as probabilities. An outcome that the teacher never chooses has the log-prob -inf; the student has none.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def forward_kl(logprobs: Tensor, teacher_logprobs: Tensor) -> Tensor:
    """Return KL(p || q) = sum_k p_k (log p_k - log q_k), p the teacher: float[N, K], float[N, K] -> float[N].

    It covers all that the teacher may choose. Hinton et al. 2015, arXiv:1503.02531.
    """
    return _weighted(teacher_logprobs, teacher_logprobs, logprobs)


def reverse_kl(logprobs: Tensor, teacher_logprobs: Tensor) -> Tensor:
    """Return KL(q || p) = sum_k q_k (log q_k - log p_k), q the student: float[N, K], float[N, K] -> float[N].

    It avoids what the teacher does not choose; infinite if a teacher's log-prob is -inf. Agarwal et al. 2024,
    arXiv:2306.13649.
    """
    return (logprobs.exp() * (logprobs - teacher_logprobs)).sum(-1)


def jensen_shannon(logprobs: Tensor, teacher_logprobs: Tensor, *, beta: float) -> Tensor:
    """Return beta KL(p || m) + (1 - beta) KL(q || m), m = beta p + (1 - beta) q: float[N, K], float[N, K] -> float[N].

    Bounded by the entropy of (beta, 1 - beta). Divided by beta it tends to the forward KL for beta -> 0, and divided by
    1 - beta to the reverse KL for beta -> 1. Agarwal et al. 2024, arXiv:2306.13649, eq. 1.

    Args:
        logprobs: of the student q.
        teacher_logprobs: of the teacher p.
        beta: in (0, 1).
    """
    mixture = torch.logaddexp(teacher_logprobs + math.log(beta), logprobs + math.log1p(-beta))
    return beta * _weighted(teacher_logprobs, teacher_logprobs, mixture) + (1 - beta) * _weighted(
        logprobs, logprobs, mixture
    )


def _weighted(weights: Tensor, above: Tensor, below: Tensor) -> Tensor:
    """Return sum_k w_k (a_k - b_k) for log-weights; outcomes with the weight 0 add nothing: float[N, K] -> float[N]."""
    never = weights == -math.inf
    terms = weights.exp() * (above.masked_fill(never, 0.0) - below)
    return terms.masked_fill(never, 0.0).sum(-1)


def nll(logprobs: Tensor) -> Tensor:
    """Return -log q(token): float[...] -> float[...]. Kim & Rush 2016, arXiv:1606.07947, eq. 4, on one output."""
    return -logprobs


def divergence(logprobs: Tensor, teacher_logprobs: Tensor, *, kind: str, beta: float) -> Tensor:
    """Return the divergence of each token: float[N, K], float[N, K] -> float[N].

    Args:
        logprobs: of the student.
        teacher_logprobs: of the teacher.
        kind: "forward_kl", "reverse_kl" or "jsd".
        beta: of "jsd".

    Raises:
        ValueError: `kind` is none of these.
    """
    if kind == "forward_kl":
        return forward_kl(logprobs, teacher_logprobs)
    if kind == "reverse_kl":
        return reverse_kl(logprobs, teacher_logprobs)
    if kind == "jsd":
        return jensen_shannon(logprobs, teacher_logprobs, beta=beta)
    raise ValueError(f"kind = {kind!r}: must be one of forward_kl, reverse_kl, jsd")


def top_outcomes(logprobs: Tensor, ids: Tensor, teacher_logprobs: Tensor, *, tail: str) -> tuple[Tensor, Tensor]:
    """Return the log-probs of k + 1 outcomes, k tokens and all others together, of student and teacher.

    The student's probability of the others is 1 minus that of the k tokens. So is the teacher's for `tail="bucket"`:
    a divergence of these outcomes is at most that of all tokens. For `tail="renormalise"` the teacher's is 0, and its
    k tokens are divided by their sum: the divergence is that of all tokens from a teacher that never chooses others.

    Args:
        logprobs: float[N, V], of the student.
        ids: long[N, k], tokens; different ones in each row.
        teacher_logprobs: float[N, k], of these tokens.
        tail: "renormalise" or "bucket".

    Returns:
        float[N, k + 1] of the student, float[N, k + 1] of the teacher.
    """
    own = logprobs.gather(-1, ids)
    student = torch.cat([own, _rest(own)], -1)
    if tail == "bucket":
        return student, torch.cat([teacher_logprobs, _rest(teacher_logprobs)], -1)
    never = teacher_logprobs.new_full((len(ids), 1), -math.inf)
    return student, torch.cat([F.log_softmax(teacher_logprobs, -1), never], -1)


def _rest(logprobs: Tensor) -> Tensor:
    """Return the log of 1 minus the sum of probabilities, at least that of a rounding error: float[N, 1]."""
    least = torch.finfo(logprobs.dtype).eps
    return (1 - logprobs.exp().sum(-1, keepdim=True)).clamp(min=least).log()
