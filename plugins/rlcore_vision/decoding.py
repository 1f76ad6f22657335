"""Inputs and decoders of models that see: batches are padded, and positions after an image are the model's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from transformers import PreTrainedModel

from rlcore.protocols import Decoder, DecodeStep
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder, ReadHeads
from rlcore_transformers.models.input_layout import CausalLayout
from rlcore_vision.image_store import FIRST
from rlcore_vision.seeing import ReadImages


class SeeingDecoder(CausalDecoder):
    """A decoder of prompts with images, whose keys and values are computed once, with those of the prompt."""

    reader: ReadImages | None

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Prefill the prompts, and move the positions of what follows them."""
        width = self._length
        if self.reader is not None and bool((self._prompts >= FIRST).any()):
            found = self.reader.positions(self._model, self._prompts, self._mask[:, :width])
            if found is not None:
                self._positions[:, width:] += found[1][:, None]
        return super().start()


@attrs.frozen
class SeeingLayout(CausalLayout):
    """Inputs of a model that sees, padded.

    Attributes:
        reader: the hook that turns the tokens of images into features.
    """

    reader: Any = None

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,  # noqa: ARG002  prompts do not join a running batch
    ) -> Decoder:
        """Return a `SeeingDecoder`."""
        decoder = SeeingDecoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast,
            speed=self.speed,
        )  # fmt: skip
        decoder.reader = self.reader
        return decoder
