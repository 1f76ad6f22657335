"""Decode a batch of prompts with any encoder-decoder of `transformers`; the encoder runs once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel

from rlcore.protocols import DecodeStep
from rlcore_transformers.models.decoding.cache import make_cache
from rlcore_transformers.models.decoding.causal_decoder import ReadHeads
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig


class Seq2SeqDecoder:
    """Encode the prompts, then decode one token of each sequence at a time.

    All sequences are at the same position of the decoder, so its inputs need no padding. Keys and values of
    cross-attention are computed with the first token, once for each distinct prompt. No gradients are recorded, and the
    model keeps its mode.

    Args:
        model: an `AutoModelForSeq2SeqLM`.
        inputs: keyword arguments of `model` for D distinct prompts and the first decoder tokens: `input_ids` and
            `attention_mask`, long[D, E], and `decoder_input_ids`, long[D, O].
        copies: long[B], the prompt of each sequence; None if there is one sequence for each prompt.
        max_new_tokens: how often `step` may be called; the cache has room for that many tokens.
        heads: computes values and advantages from hidden states.
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
        # The top-level configuration may give the encoder's number of layers.
        config = model.get_decoder().config.get_text_config(decoder=True)
        capacity = inputs["decoder_input_ids"].shape[1] + max_new_tokens
        self._cache = EncoderDecoderCache(
            make_cache(config, capacity, preallocate=speed.preallocated_cache), DynamicCache(config=config)
        )

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Encode the prompts, and run the decoder on its first tokens."""
        with self._autocast():
            encoder = self._model.get_encoder()
            self._encoded = encoder(input_ids=self._inputs["input_ids"], attention_mask=self._mask)
            outputs = self._forward(self._inputs["decoder_input_ids"])
        if self._copies is None:
            return outputs
        self._select(self._copies)
        return outputs.rows(self._copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the decoder on the next token of every sequence: long[B]."""
        with self._autocast():
            return self._forward(tokens[:, None])

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending) and drop the others."""
        self._select(rows)

    def _select(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._mask = self._mask[rows]
        self._encoded.last_hidden_state = self._encoded.last_hidden_state[rows]

    def _forward(self, tokens: Tensor) -> DecodeStep:
        inputs: dict[str, Any] = {
            "encoder_outputs": self._encoded,
            "attention_mask": self._mask,
            "decoder_input_ids": tokens,
            "past_key_values": self._cache,
            "use_cache": True,
        }
        if self._heads is None:
            return DecodeStep(self._model(**inputs).logits[:, -1], None)
        with head_reads(self._model.get_output_embeddings()) as hidden:
            logits = self._model(**inputs).logits[:, -1]
        return DecodeStep(logits, *self._heads(hidden[0][:, -1]))
