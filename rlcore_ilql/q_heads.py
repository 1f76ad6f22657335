"""Q-heads: Q-values of every possible next token, with slowly moving target copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rlcore import ops
from rlcore.protocols import Divisible, Policy, Trunk
from rlcore.sharding import local_weights
from rlcore_transformers.models.heads import full_precision
from rlcore_transformers.models.speed.fused_logprobs import rows_kept_whole, score_tokens

NAME = "q_heads"
"""The head's name in a policy, and the beginning of its parameters' names in checkpoints."""


class QHead(nn.Module):
    """Map hidden states to Q-values: Linear(H, 2H), ReLU, Linear(2H, V); with float32 weights whatever the model's.

    Args:
        width: H.
        vocabulary: V.
        gain: factor of the hidden states.
        in_tiles: whether log-probs of many tokens are computed without a tensor of all Q-values.
    """

    def __init__(self, width: int, vocabulary: int, gain: float = 1.0, *, in_tiles: bool = True) -> None:
        super().__init__()
        self.gain, self.in_tiles = gain, in_tiles
        self.rise = nn.Linear(width, 2 * width)
        self.fall = nn.Linear(2 * width, vocabulary)

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the Q-values of all tokens, float32[N, V], for float[N, H]."""
        out: Tensor = self.fall(torch.relu(self.rise(hidden.float() * self.gain)))
        return out.float()

    def score(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Q-values of `tokens`, long[N], and the logs of their softmax: float32[N] for float[N, H]."""
        if not self.in_tiles or len(hidden) <= rows_kept_whole(self.fall.weight):
            q_values = self(hidden)
            return q_values.gather(1, tokens[:, None])[:, 0], ops.token_logprobs(q_values, tokens)
        risen = torch.relu(self.rise(hidden.float() * self.gain))
        scores = score_tokens(risen, self.fall.weight, self.fall.bias, tokens)
        return scores.chosen, scores.logprobs

    def at(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Return only the Q-values of `tokens`, long[N]: float32[N] for float[N, H], in full precision."""
        with full_precision(hidden):
            risen = torch.relu(self.rise(hidden.float() * self.gain))
            picked = (risen * F.embedding(tokens, self.fall.weight)).sum(-1)
            return (picked + self.fall.bias[tokens]).float()


class QHeads(nn.Module):
    """K Q-heads on the hidden states that the policy's output embeddings receive, and a target copy of each.

    Snell et al. 2022, arXiv:2206.11871, section 4; two heads against overestimation, van Hasselt et al. 2016.

    Args:
        trunk: the hidden states of the policy's model.
        num: K.
    """

    def __init__(self, trunk: Trunk, *, num: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            QHead(trunk.width, trunk.vocabulary, trunk.gain, in_tiles=trunk.in_tiles) for _ in range(num)
        )
        self.targets = copy.deepcopy(self.heads).requires_grad_(False)

    def forward(self, hidden: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        """Compute the outputs of every head for the chosen tokens.

        Args:
            hidden: float[N, H], the hidden states that predict them.
            tokens: long[N].

        Returns:
            `q_values`, Q(s)[a], `q_logprobs`, log softmax(Q(s))[a], and `target_q_values`, the Q-values of the target
            copies, without gradient; each float32[K, N].
        """
        values, logprobs = [], []
        is_mixed = torch.is_autocast_enabled(hidden.device.type)
        for head in self.heads:
            picked, logprob = cast("QHead", head).score(hidden, tokens)
            # Values that the loss compares with the targets are computed in the targets' precision.
            values.append(cast("QHead", head).at(hidden, tokens) if is_mixed else picked)
            logprobs.append(logprob)
        with torch.no_grad():
            targets = [cast("QHead", head).at(hidden, tokens) for head in self.targets]
        names = ("q_values", "q_logprobs", "target_q_values")
        return {name: torch.stack(each) for name, each in zip(names, (values, logprobs, targets), strict=True)}

    def advantages(self, hidden: Tensor, values: Tensor | None) -> Tensor:
        """Return the advantages of all next tokens: the minimum over target Q-heads, less V.

        Args:
            hidden: float[B, H].
            values: float[B]; 0 if None, which does not change sampling, since V is the same for all tokens of a row.

        Returns:
            float32[B, V].
        """
        with full_precision(hidden):  # sampling multiplies rounding errors by gen.beta
            lowest: Tensor = torch.stack([head(hidden) for head in self.targets]).amin(0)
        return lowest if values is None else lowest - values[:, None]


@torch.no_grad()
def sync_targets(policy: Policy, rate: float) -> None:
    """Move the target of every Q-head towards it: target <- rate * Q + (1 - rate) * target.

    Args:
        policy: one with a head `q_heads` that is a `QHeads`.
        rate: in [0, 1].
    """
    if isinstance(policy, Divisible):
        policy.drop()
    weights: Mapping[str, Tensor] = dict(local_weights(policy))
    for name, target in weights.items():
        if name.startswith(f"{NAME}.targets."):
            target.lerp_(weights[name.replace(".targets.", ".heads.", 1)].to(target.dtype), rate)
    policy.version += 1  # sampling may use the targets
