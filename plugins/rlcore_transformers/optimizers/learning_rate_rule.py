"""The rule for learning rates that a run does not set; light, so that `rlcore show` needs no torch.

The best learning rate of Adam falls as 1 / width (Yang et al. 2022, arXiv:2203.03466, table 8), and at a given depth
the number of parameters N grows as width ** 2. So a rate published for a model of M parameters becomes

    rate(N) = published * sqrt(M / N),    at most LR(N) = 0.003239 - 0.0001395 ln N

where LR is the best rate for training from scratch (Kaplan et al. 2020, arXiv:2001.08361, eq. D.1). An adapter takes
ten times as much (Biderman et al. 2024, arXiv:2405.09673; Schulman et al. 2025, LoRA Without Regret). The rate is never
below the published one, so that nothing changes for larger models, and has two significant digits.
"""

from __future__ import annotations

import math

ADAPTER_FACTOR = 10.0
SIZE_SOURCES = "Yang et al. 2022, arXiv:2203.03466; Kaplan et al. 2020, arXiv:2001.08361"
ADAPTER_SOURCES = "Biderman et al. 2024, arXiv:2405.09673; Schulman et al. 2025, LoRA Without Regret"


def adapted_rate(published: float, published_size: float, size: float, *, is_adapter: bool = False) -> float:
    """Return the learning rate for a model of another size.

    Args:
        published: a learning rate.
        published_size: number of parameters of the model for which it was published.
        size: number of parameters of the model, frozen ones included.
        is_adapter: whether an adapter trains instead of the weights.
    """
    from_scratch = 0.003239 - 0.0001395 * math.log(size)
    scaled = min(published * math.sqrt(published_size / size), max(published, from_scratch))
    return float(f"{max(published, scaled * (ADAPTER_FACTOR if is_adapter else 1.0)):.1e}")


def describe_rule(published: float, published_size: float) -> str:
    """Return the rule for one published rate as a sentence."""
    return (
        f"{published:g} * sqrt({published_size:.3g} / N) for N parameters, frozen ones included, at most "
        f"0.003239 - 0.0001395 ln N and at least {published:g}; {ADAPTER_FACTOR:g} times as much with an adapter"
    )
