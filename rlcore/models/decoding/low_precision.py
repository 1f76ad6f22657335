"""Sample with a copy of the weights in a narrower type, where a machine is faster in it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import attrs
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.protocols import Decoder, DecodeStep, JoiningDecoder, joins


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
            # Given narrow weights in place of the model's own, the copy never holds wide ones.
            narrowed: dict[int, object] = {id(p): self._narrowed(p) for p in self._model.parameters()}
            self._copy = copy.deepcopy(self._model, narrowed).eval()
        for narrow, wide in zip(self._copy.parameters(), self._model.parameters(), strict=True):
            narrow.copy_(wide)
        for kept, current in zip(self._copy.buffers(), self._model.buffers(), strict=True):
            kept.copy_(current)
        return self._copy

    def _narrowed(self, weights: Tensor) -> nn.Parameter:
        dtype = self._dtype if weights.is_floating_point() else weights.dtype
        return nn.Parameter(torch.empty_like(weights, dtype=dtype), requires_grad=False)


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

    @property
    def joins(self) -> bool:
        """Tell whether it takes further prompts in."""
        return joins(self.decoder) is not None

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Read further prompts, whose sequences go behind the present ones."""
        return attrs.evolve(cast("JoiningDecoder", self.decoder).join(prompts), is_exact=False)
