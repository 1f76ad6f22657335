"""The groups in which torch's FSDP2 gathers the weights of a model: its blocks, and their norms."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from torch import nn
from transformers.pytorch_utils import Conv1D

from rlcore.errors import ModelError
from rlcore.models.freezing import decoder_blocks
from rlcore.models.learner import ModelLearner

CAST = (nn.Linear, nn.Conv1d, nn.Conv2d, Conv1D)
"""Layers whose weights autocast rounds to 16 bits wherever they are used."""


def blocks_of(trained: nn.Module) -> list[nn.Module]:
    """Return the blocks of every model inside a module, by the names that its class declares; nested ones first."""
    names = {name for part in trained.modules() for name in getattr(part, "_no_split_modules", None) or ()}
    found = [part for part in trained.modules() if type(part).__name__ in names]
    if not found:
        try:
            found = list(decoder_blocks(cast("Any", trained).model))
        except ModelError as error:
            raise ModelError(
                f"run.shard = 'fsdp': {type(cast('Any', trained).model).__name__} declares no blocks "
                "(_no_split_modules), so how to divide it is unknown: set run.shard=none"
            ) from error
    return [block for block in reversed(found) if any(True for _ in block.parameters())]


def shared_weights(blocks: list[nn.Module], learner: ModelLearner[Any]) -> set[nn.Parameter]:
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
            f"run.shard = 'fsdp': blocks of {type(learner.model).__name__} share weights that train, which cannot be "
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
    kept = [part for part in owners if not isinstance(part, CAST)]
    return kept if all("norm" in type(part).__name__.lower() for part in kept) else None
