"""Decode a batch of prompts with any causal model of `transformers`, in a padded key-value cache.

Also in this file: decode a batch of prompts with any encoder-decoder of `transformers`; the encoder runs once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from rlcore.protocols import DecodeStep
from rlcore_transformers.models.decoding.cache import PreallocatedLayer, Prefill, make_cache
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig
from rlcore_transformers.models.speed.packing import pack, padding_known

ReadHeads = Callable[[Tensor], tuple[Tensor | None, Tensor | None]]
"""From the input of the output embeddings, float[B, H], to values, float[B], and advantages, float[B, V]."""


class CausalDecoder:
    """Prefill prompts of different lengths in one batch, then decode one token of each at a time.

    Prompts are padded on the left; positions count real tokens, so padding changes nothing. A prompt that occurs
    several times is prefilled once. No gradients are recorded, and the model keeps its mode.

    Args:
        model: an `AutoModelForCausalLM`, or a wrapper that passes keywords on to one.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called; the cache has room for that many tokens.
        heads: computes values and advantages from hidden states.
        pad_id: fills the left of shorter prompts; any id of the vocabulary will do.
        autocast: makes the context of precision that the model is run in.
        packs: the model's attention may run packed (`packing`) on sequences of this length; the
            prefill then has no padding, and computes shared prefixes once.
        speed: which techniques of speed are switched on.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None = None,
        pad_id: int = 0,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        packs: bool = False,
        speed: SpeedConfig = ALL_ON,
    ) -> None:
        self._speed = speed
        self._autocast = autocast
        self._model, self._heads = model, heads
        device = next(model.parameters()).device
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(prompt) for prompt in prompts))}
        self._copies = None
        if len(distinct) < len(prompts):
            self._copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
        self._length = max(len(prompt) for prompt in distinct)
        self._prompts = torch.tensor(
            [[pad_id] * (self._length - len(prompt)) + list(prompt) for prompt in distinct], device=device
        )
        self._padded = any(len(prompt) < self._length for prompt in distinct)
        capacity = self._length + max_new_tokens
        starts = torch.tensor([[self._length - len(prompt)] for prompt in distinct], device=device)
        columns = torch.arange(capacity, device=device)[None]
        self._positions = (columns - starts).clamp(min=0)
        self._mask = (columns >= starts).long()  # passed even if nothing is padded: transformers then builds no mask
        self._cache = make_cache(model.config, capacity, preallocate=speed.preallocated_cache)
        # Recurrent models take a mask of the present tokens only, not of the cached ones.
        self._is_recurrent = not any(isinstance(layer, CacheLayerMixin) for layer in self._cache.layers)
        self._layers = [layer for layer in self._cache.layers if isinstance(layer, PreallocatedLayer)]
        self._packs = packs and len(self._layers) == len(self._cache.layers)
        self._cache_name, self._takes_positions = keywords(model)

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Prefill the prompts."""
        outputs = self._prefill_packed() if self._packs else self._forward(self._prompts, 0)
        if self._copies is None:
            return outputs
        self._select(self._copies)
        return outputs.rows(self._copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        self._length += 1
        return self._forward(tokens[:, None], self._length - 1)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending) and drop the others."""
        self._select(rows)
        self._padded = self._padded and not bool(self._mask[:, : self._length].all())

    def _select(self, rows: Tensor) -> None:
        self._cache.reorder_cache(cast("torch.LongTensor", rows))
        self._mask, self._positions = self._mask[rows], self._positions[rows]

    def _prefill_packed(self) -> DecodeStep:
        """Run the prompts packed, then write their keys and values into the padded cache."""
        mask = self._mask[:, : self._length].bool()
        inputs, node = pack(self._prompts, mask, share=True, speed=self._speed)
        prefill = Prefill(inputs["packing"])
        last = node[mask.sum(1).cumsum(0) - 1]
        head = self._model.get_output_embeddings()
        with self._autocast(), head_reads(head, lambda hidden: hidden.index_select(1, last)) as hidden:
            logits = self._model(**inputs | {"packing": prefill}).logits[0]
            outputs = (
                DecodeStep(logits, None) if self._heads is None else DecodeStep(logits, *self._heads(hidden[0][0]))
            )
        index = node[(mask.reshape(-1).cumsum(0) - 1).clamp(min=0)]  # padding is masked: any token will do
        for layer, states in zip(self._layers, prefill.states, strict=True):
            layer.update(*(_unpack(each, index, len(mask)) for each in states))
        return outputs

    def _forward(self, tokens: Tensor, start: int) -> DecodeStep:
        inputs: dict[str, object] = {
            "input_ids": tokens,
            "attention_mask": self._mask[:, start if self._is_recurrent else 0 : self._length],
            self._cache_name: self._cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        if self._takes_positions:
            inputs["position_ids"] = self._positions[:, start : self._length]
        with self._autocast(), padding_known(self._padded):
            if self._heads is None:
                return DecodeStep(self._model(**inputs).logits[:, -1], None)
            with head_reads(self._model.get_output_embeddings()) as hidden:
                logits = self._model(**inputs).logits[:, -1]
            return DecodeStep(logits, *self._heads(hidden[0][:, -1]))


def _unpack(states: Tensor, index: Tensor, height: int) -> Tensor:
    """Gather packed states, float[1, heads, N, width], at `index`, long[B * T]: float[B, heads, T, width]."""
    heads, width = states.shape[1], states.shape[3]
    padded = states[0].transpose(0, 1).index_select(0, index)
    return padded.view(height, -1, heads, width).transpose(1, 2)


CACHES = ("cache_params", "cache", "past_key_values")
"""Names of the argument for the cache: of recurrent models, since transformers 5.24, and before."""


def cache_keyword(model: nn.Module) -> str:
    """Return the name of the cache argument of `model.forward`.

    A wrapper whose signature has none passes keywords on; then the first module inside that names one decides.
    """
    for module in model.modules():
        named = inspect.signature(module.forward).parameters
        for name in CACHES:
            if name in named:
                return name
    return CACHES[-1]


def keywords(model: nn.Module) -> tuple[str, bool]:
    """Return the name of the cache argument of `model.forward`, and whether it takes positions.

    A wrapper whose signature has neither argument passes keywords on to a decoder that has both.
    """
    named = inspect.signature(model.forward).parameters
    cache = cache_keyword(model)
    return cache, "position_ids" in named or cache not in named


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
        self._cache_name = cache_keyword(model)
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
        inputs: dict[str, object] = {
            "encoder_outputs": self._encoded,
            "attention_mask": self._mask,
            "decoder_input_ids": tokens,
            self._cache_name: self._cache,
            "use_cache": True,
        }
        if self._heads is None:
            return DecodeStep(self._model(**inputs).logits[:, -1], None)
        with head_reads(self._model.get_output_embeddings()) as hidden:
            logits = self._model(**inputs).logits[:, -1]
        return DecodeStep(logits, *self._heads(hidden[0][:, -1]))
