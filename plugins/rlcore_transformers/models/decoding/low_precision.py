"""Sample with a copy of the weights in lower precision (`model.sampling_dtype`), on machines that are faster in it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import attrs
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.protocols import Decoder, DecodeStep
from rlcore.protocols.decoders import JoiningDecoder, joins


class LowPrecisionCopy:
    """A copy of a model with weights of lower precision; buffers, such as rotary frequencies, keep their types.

    Args:
        model: the model to copy. The copy is made on first use, and then stays in memory.
        dtype: the type of the copy's weights.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._copy: PreTrainedModel | None = None

    @torch.no_grad()
    def fresh(self) -> PreTrainedModel:
        """Return the copy, in evaluation mode, after copying the model's present weights into it."""
        if self._copy is None or self._copy.device != self._model.device:
            # The memo holds new parameters, so deepcopy never copies those of full precision.
            memo: dict[int, object] = {id(p): self._empty(p) for p in self._model.parameters()}
            self._copy = copy.deepcopy(self._model, memo).eval()
        for low, full in zip(self._copy.parameters(), self._model.parameters(), strict=True):
            low.copy_(full)
        for kept, current in zip(self._copy.buffers(), self._model.buffers(), strict=True):
            kept.copy_(current)
        return self._copy

    def _empty(self, weights: Tensor) -> nn.Parameter:
        dtype = self._dtype if weights.is_floating_point() else weights.dtype
        return nn.Parameter(torch.empty_like(weights, dtype=dtype), requires_grad=False)


@attrs.frozen(eq=False)
class LowPrecisionDecoder:
    """A decoder whose steps are marked as inexact: its logits are those of the copy, not of the policy.

    Attributes:
        decoder: the decoder of the copy.
    """

    decoder: Decoder

    def start(self) -> DecodeStep:
        """Prefill the prompts."""
        return attrs.evolve(self.decoder.start(), is_exact=False)

    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        return attrs.evolve(self.decoder.step(tokens), is_exact=False)

    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending) and drop the others."""
        self.decoder.keep(rows)

    @property
    def joins(self) -> bool:
        """Return whether further prompts can join."""
        return joins(self.decoder) is not None

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Prefill further prompts, whose sequences come after the present ones."""
        return attrs.evolve(cast("JoiningDecoder", self.decoder).join(prompts), is_exact=False)
