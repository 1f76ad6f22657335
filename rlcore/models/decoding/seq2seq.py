"""Continue a batch of prompts token by token with any encoder-decoder of `transformers`: the encoder runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from rlcore.models.decoding.cache import make_cache
from rlcore.models.decoding.causal import ReadHeads
from rlcore.models.head_input import head_reads
from rlcore.models.settings import ALL_ON, SpeedConfig
from rlcore.protocols import DecodeStep


class Seq2SeqDecoder:
    """Read prompts with the encoder, then one token of each sequence at a time with the decoder.

    Every sequence is at the same position of the decoder, so nothing is padded there. What cross-attention needs of a
    prompt is computed with the first token, once for prompts that are the same. Nothing is recorded for autograd, and
    the model is left in the mode it is in.

    Args:
        model: an `AutoModelForSeq2SeqLM`.
        inputs: how `model` is called with D distinct prompts and what its decoder begins every sequence with:
            `input_ids` and `attention_mask`, long[D, E], and `decoder_input_ids`, long[D, O].
        copies: long[B], which of the prompts each sequence begins with; None where it is each of them, once.
        max_new_tokens: how often `step` may be called; it is what the cache has room for.
        heads: what is said besides logits.
        autocast: makes the context of precision that the model is run in.
        speed: which techniques of speed are switched on.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        inputs: Mapping[str, Tensor],
        *,
        copies: Tensor | None,
        max_new_tokens: int,
        heads: ReadHeads | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        speed: SpeedConfig = ALL_ON,
    ) -> None:
        self._model, self._inputs, self._copies = model, inputs, copies
        self._heads, self._autocast = heads, autocast
        self._mask = inputs["attention_mask"]
        self._encoded: Any = None
        # The configuration as a whole may count the encoder's layers; the decoder's is asked for its own.
        config = model.get_decoder().config.get_text_config(decoder=True)
        capacity = inputs["decoder_input_ids"].shape[1] + max_new_tokens
        self._cache = EncoderDecoderCache(
            make_cache(config, capacity, preallocate=speed.preallocated_cache), DynamicCache(config=config)
        )

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the prompts, and what the decoder begins with."""
        with self._autocast():
            encoder = self._model.get_encoder()
            self._encoded = encoder(input_ids=self._inputs["input_ids"], attention_mask=self._mask)
            said = self._read(self._inputs["decoder_input_ids"])
        if self._copies is None:
            return said
        self._select(self._copies)
        return said.rows(self._copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        with self._autocast():
            return self._read(tokens[:, None])

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only."""
        self._select(rows)

    def _select(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._mask = self._mask[rows]
        self._encoded.last_hidden_state = self._encoded.last_hidden_state[rows]

    def _read(self, tokens: Tensor) -> DecodeStep:
        inputs: dict[str, Any] = {
            "encoder_outputs": self._encoded,
            "attention_mask": self._mask,
            "decoder_input_ids": tokens,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if self._heads is None:
            return DecodeStep(self._model(**inputs).logits[:, -1], None)
        with head_reads(self._model.get_output_embeddings()) as rows:
            logits = self._model(**inputs).logits[:, -1]
        return DecodeStep(logits, *self._heads(rows[0][:, -1]))
