"""The groups in which torch's FSDP2 gathers the weights of a model: its blocks, and their norms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from torch import nn

from rlcore.errors import ModelError

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose weights autocast rounds to 16 bits wherever they are used."""
CAST_BY_NAME = "Conv1D"
"""Name of another one: the linear layer of GPT-2 in `transformers`."""


def shared_weights(blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Return the parameters that several blocks share, which stay whole, as beneath the adapter of a copied critic.

    Raises:
        ModelError: one of them trains.
    """
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    nested = Counter(
        parameter for block in blocks for part in block.modules() if part is not block and part in blocks
        for parameter in set(part.parameters())
    )  # fmt: skip
    shared = {parameter for parameter, count in uses.items() if count - nested[parameter] > 1}
    if any(parameter.requires_grad for parameter in shared):
        raise ModelError(
            f"run.shard = 'fsdp': blocks ({type(blocks[0]).__name__}) share weights that train, which cannot be "
            "divided by block: set run.shard=none"
        )
    return shared


def norms_of(block: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a block that autocast runs on weights of 32 bits, if they are norms; else None.

    Gathered in 16 bits, their weights would be rounded, which those of one process are not. Weights that other kinds of
    layers hold, such as the relative positions of a T5, may be read without calling the layer, so that they cannot be
    gathered when it is called.
    """
    owners = [part for part in block.modules() if next(part.parameters(recurse=False), None) is not None]
    kept = [part for part in owners if not isinstance(part, CAST) and type(part).__name__ != CAST_BY_NAME]
    return kept if all("norm" in type(part).__name__.lower() for part in kept) else None
