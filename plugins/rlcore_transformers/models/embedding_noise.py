"""Noise on the embeddings of a model in training (NEFTune)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.errors import ConfigError

RATES = "embedding_dropout"
"""Attribute of the input embeddings with alpha. Its name makes `rlcore.dropout` find it among the dropout rates."""


class Alpha(dict[str, float]):
    """Alpha as a rate of dropout, which a trainer that needs a deterministic policy cannot disable unnoticed."""

    def __setitem__(self, key: str, value: float) -> None:
        """Refuse to become 0.

        Raises:
            ConfigError: dropout is disabled.
        """
        if value == 0:
            raise ConfigError(
                f"model.neftune_alpha = {self['alpha']:g}: this trainer disables dropout, because it compares the "
                "policy with the one that sampled, or with a reference, and noise on the embeddings is of the same "
                "kind; leave model.neftune_alpha out, or, if the trainer has the option, set trainer.dropout to true"
            )
        super().__setitem__(key, value)


def add_noise(model: PreTrainedModel, alpha: float) -> None:
    """Let `noisy` add noise to the embeddings of `model`; copies of it do so too."""
    setattr(model.get_input_embeddings(), RATES, Alpha(alpha=alpha))


@contextmanager
def noisy(model: PreTrainedModel, tokens: Tensor, mask: Tensor, action_mask: Tensor) -> Iterator[None]:
    """Add noise to the embeddings inside the context, if `add_noise` was called and a loss is computed.

    x_t <- x_t + alpha / sqrt(L H) * u, u uniform in [-1, 1]^H, for each of the L tokens of a sequence. Jain et al.
    2023, arXiv:2310.05914. A loss is computed if the model is in training mode and gradients are enabled; all other
    passes, such as those of evaluation, sampling and the reference, have no noise. It comes from the generator
    that dropout uses, and is the same for packed and padded batches.

    Args:
        model: the language model.
        tokens: long[B, T].
        mask: bool[B, T], True for real tokens.
        action_mask: bool[B, T], True for chosen tokens.
    """
    embeddings = model.get_input_embeddings()
    alpha: float = getattr(embeddings, RATES, {"alpha": 0.0})["alpha"]
    if not (alpha and model.training and torch.is_grad_enabled()):
        yield
        return
    read = mask & ops.needed(mask, ops.predicting(action_mask))  # later tokens have no effect on the loss
    lengths = mask.sum(1, keepdim=True).expand_as(mask)[read]

    def change(_: object, __: object, output: Tensor) -> Tensor:
        width = output.shape[-1]
        noise = torch.empty(len(lengths), width, dtype=output.dtype, device=output.device).uniform_(-1, 1)
        noise = noise * (alpha / math.sqrt(width)) * lengths.to(output.device, output.dtype)[:, None].rsqrt()
        if output.shape[:2] == tokens.shape and output.shape[:2] != (1, len(lengths)):
            return output + output.new_zeros(output.shape).index_put((read.to(output.device),), noise)
        if output.shape[1] != len(noise):
            raise ConfigError(
                f"model.neftune_alpha = {alpha:g}: {type(model).__name__} looks up embeddings of the shape "
                f"{tuple(output.shape)} in a batch of {tuple(tokens.shape)} tokens, and which is whose is unknown; "
                "leave model.neftune_alpha out"
            )
        return output + noise[None]

    hook: Any = embeddings.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()
