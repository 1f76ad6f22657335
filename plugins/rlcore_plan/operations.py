"""The floating-point operations of a round, from the sizes of the model's matrices and the lengths of its sequences.

A forward pass multiplies and adds once for each element of a matrix and token, 2 operations; a backward pass does so
twice, for the gradients of inputs and of weights (Kaplan et al. 2020, arXiv:2001.08361, section 2.1). Attention adds
4 x layers x width x T^2 / 2 for a causal sequence of T tokens. Norms, activations and softmax are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from torch import nn

from rlcore_plan.model_sizes import find_blocks
from rlcore_plan.planned_run import PlannedRun


@attrs.frozen
class Matrices:
    """The elements of the matrices that a token meets.

    Attributes:
        all: every matrix, of experts those that a token is routed to.
        reached: those to whose inputs a gradient goes back.
        trained: those that train.
        blocks: those of the blocks.
        layers: layers with attention.
        width: heads times the width of a head.
        rows_read: bytes of the weights that are read for a token when sampling.
    """

    all: float
    reached: float
    trained: float
    blocks: float
    layers: int
    width: int
    rows_read: float

    def forward(self, lengths: Sequence[int]) -> float:
        """Return the operations of a forward pass over sequences of these lengths."""
        return 2 * self.all * sum(lengths) + self.attention(lengths)

    def attention(self, lengths: Sequence[int]) -> float:
        """Return those of attention in it."""
        return 2.0 * self.layers * self.width * sum(length * length for length in lengths)

    def update(self, lengths: Sequence[int], *, recomputes: bool) -> float:
        """Return the operations of a forward and a backward pass.

        Args:
            lengths: lengths of the sequences.
            recomputes: whether the blocks run forwards again in the backward pass.
        """
        tokens, part = sum(lengths), self.reached / self.all if self.all else 0.0
        backward = 2 * (self.reached + self.trained) * tokens + 2 * self.attention(lengths) * part
        again = (2 * self.blocks * tokens + self.attention(lengths)) if recomputes else 0.0
        return self.forward(lengths) + backward + again


def matrices_of(subject: PlannedRun) -> Matrices:
    """Return the matrices of the planned run's policy."""
    policy = subject.policy
    module, model = policy.module, getattr(policy, "model", policy.module)
    config = getattr(model, "config", None)
    text = config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config
    chosen, every = (getattr(text, name, None) for name in ("num_experts_per_tok", "num_local_experts"))
    every = every or getattr(text, "num_experts", None)
    routed = chosen / every if isinstance(chosen, int) and isinstance(every, int) and every else 1.0
    heads = {id(each) for part in module.modules() if isinstance(part, nn.Linear) for each in part.parameters()}
    tables = {
        id(each) for part in module.modules() if isinstance(part, nn.Embedding) for each in part.parameters()
    } - heads  # a tied table is the head too
    blocks = find_blocks(policy)
    inside = {id(each) for block in blocks for each in block.parameters()}
    total = trained = reached = within = read = 0.0
    is_reached = any(each.requires_grad for each in module.parameters() if id(each) in tables)
    for name, weight in module.named_parameters():
        is_reached = is_reached or weight.requires_grad
        if weight.dim() < 2 or id(weight) in tables:
            continue
        size = weight.numel() * (routed if "expert" in name else 1.0)
        total, read = total + size, read + size * weight.itemsize
        trained += size * weight.requires_grad
        reached += size * is_reached
        within += size * (id(weight) in inside)
    layers = int(_read(text, "num_hidden_layers", len(blocks)))
    hidden = int(_read(text, "hidden_size", 0))
    width = int(_read(text, "num_attention_heads", 0)) * int(_read(text, "head_dim", 0)) or hidden
    return Matrices(total, reached, trained, within, layers, width, read)


def _read(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, None)
    return value if isinstance(value, int) else default
