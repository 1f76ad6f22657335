"""Sample with a copy of the weights in a narrower type, where a machine is faster in it."""

from __future__ import annotations

import copy

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.protocols import Decoder, DecodeStep


class NarrowCopy:
    """Keep a copy of a model with narrower weights; buffers, such as rotary frequencies, stay as they are.

    Args:
        model: what is copied; not before it is first asked for, and its memory is this copy's as long as this lives.
        dtype: what its weights are rounded to.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._copy: PreTrainedModel | None = None

    @torch.no_grad()
    def fresh(self) -> PreTrainedModel:
        """Return the copy, in evaluation mode, with the weights the model has at this moment."""
        if self._copy is None or self._copy.device != self._model.device:
            self._copy = copy.deepcopy(self._model).eval().requires_grad_(requires_grad=False)
            for parameter in self._copy.parameters():
                if parameter.is_floating_point():
                    parameter.data = parameter.data.to(self._dtype)
        for narrow, wide in zip(self._copy.parameters(), self._model.parameters(), strict=True):
            narrow.copy_(wide)
        for kept, current in zip(self._copy.buffers(), self._model.buffers(), strict=True):
            kept.copy_(current)
        return self._copy


@attrs.frozen(eq=False)
class NarrowDecoder:
    """Say of every step that its logits are not quite the policy's own.

    Attributes:
        decoder: decodes with the copy.
    """

    decoder: Decoder

    def start(self) -> DecodeStep:
        """Read the prompts."""
        return attrs.evolve(self.decoder.start(), is_exact=False)

    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        return attrs.evolve(self.decoder.step(tokens), is_exact=False)

    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only."""
        self.decoder.keep(rows)
