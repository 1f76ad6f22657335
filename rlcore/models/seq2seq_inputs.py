"""Lay a batch of trajectories out as an encoder-decoder reads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ConfigError, DataError
from rlcore.models.decoding.causal import ReadHeads
from rlcore.models.decoding.seq2seq import Seq2SeqDecoder
from rlcore.models.inputs import ModelInputs
from rlcore.models.settings import ALL_ON, SpeedConfig
from rlcore.protocols import Decoder
from rlcore.types import Trajectories


@attrs.frozen
class Seq2SeqLayout:
    """Give the encoder what lies before a sequence's first chosen token, the decoder what follows.

    Of what the decoder reads, others than the policy may have said some, as in a dialogue of several turns: it is read
    all the same, and predicts nothing. Both sides begin at column 0 however the batch is padded, because some families
    count positions from there.

    Attributes:
        opening: what the decoder reads before all else, one token at least.
        closing: what ends every text that the encoder reads, unless it ends so already.
        encoder_length: tokens the encoder can read, `closing` included; 0 where there is no bound.
        decoder_length: tokens the decoder can read, `opening` included; 0 where there is no bound.
        pad_id: fills the right of shorter rows; any id will do.
        speed: which techniques of speed are switched on.
    """

    opening: tuple[int, ...]
    closing: tuple[int, ...] = ()
    encoder_length: int = 0
    decoder_length: int = 0
    pad_id: int = 0
    speed: SpeedConfig = ALL_ON
    pads: ClassVar[bool] = True

    def lay_out(
        self,
        tokens: Tensor,
        mask: Tensor,
        action_mask: Tensor,
        *,
        share: bool = False,  # noqa: ARG002  nothing is: an encoder sees what comes after too
    ) -> ModelInputs:
        """Lay a batch out as `rlcore.models.inputs.InputLayout.lay_out` says.

        Raises:
            DataError: a sequence is longer than the encoder or the decoder can read.
        """
        real = mask | action_mask  # a token that is only asked about, past the end of a sequence, is not in the mask
        begun = action_mask.cumsum(1) > 0
        source, target = real & ~begun, real & begun
        encoder_ids, encoder_mask = self._encoder_inputs(tokens[source], source.sum(1, keepdim=True))
        places = target.cumsum(1) - 1
        last = (places * action_mask).amax(1, keepdim=True)
        decoder_ids = self._decoder_inputs(tokens[target & (places < last)], last)
        before = torch.arange(len(tokens), device=tokens.device)[:, None] * decoder_ids.shape[1] + len(self.opening) - 1
        inputs = {
            "input_ids": encoder_ids,
            "attention_mask": encoder_mask,
            "decoder_input_ids": decoder_ids,
            "use_cache": False,
        }
        return ModelInputs(inputs, (before + places)[action_mask], tokens[action_mask])

    def _encoder_inputs(self, flat: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Put B texts, of long[B, 1] tokens each, under each other and close them: ids and mask, long[B, E]."""
        columns = torch.arange(int(lengths.max()) + len(self.closing), device=flat.device)
        ids = flat.new_full((len(lengths), len(columns)), self.pad_id)
        ids = ids.masked_scatter(columns < lengths, flat)
        if self.closing:
            end = flat.new_tensor(self.closing)
            tail = torch.arange(len(self.closing), device=flat.device)
            held = ids.gather(1, (lengths - len(end) + tail).clamp(min=0))
            is_closed = (lengths >= len(end)) & (held == end).all(1, keepdim=True)
            ids = ids.scatter(1, lengths + tail, end.expand(len(ids), -1))
            lengths = lengths + len(end) * ~is_closed
        if 0 < self.encoder_length < int(lengths.max()):
            raise DataError(
                f"a prompt has {int(lengths.max())} tokens{self._closed}, more than the {self.encoder_length} that the "
                f"model's encoder reads: set data.max_prompt_tokens to {self.max_prompt_length} to cut prompts on the "
                "left, or shorten what lies before a sample's first output"
            )
        return ids, (columns < lengths).long()

    def _decoder_inputs(self, flat: Tensor, lengths: Tensor) -> Tensor:
        """Put B continuations, of long[B, 1] tokens each, behind what the decoder begins with: long[B, D]."""
        start = len(self.opening)
        width = start + int(lengths.max())
        if 0 < self.decoder_length < width:
            raise DataError(
                f"from its first output on, a sequence has {width - start + 1} tokens, more than the "
                f"{self.max_new_tokens} that the model's decoder takes: shorten the outputs, or set "
                "data.max_sample_tokens to cut samples on the right"
            )
        columns = torch.arange(width, device=flat.device)
        ids = flat.new_full((len(lengths), width), self.pad_id)
        ids[:, :start] = flat.new_tensor(self.opening)
        return ids.masked_scatter((columns >= start) & (columns < start + lengths), flat)

    @property
    def max_prompt_length(self) -> int:
        """Count the tokens a prompt may have; 0 where there is no bound."""
        return max(self.encoder_length - len(self.closing), 0)

    @property
    def max_new_tokens(self) -> int:
        """Count the tokens that may be read from the first chosen one on; 0 where there is no bound."""
        return max(self.decoder_length - len(self.opening), 0)

    @property
    def max_length(self) -> int:
        """Count the tokens of the longest sequence that can be read at all; 0 where there is no bound."""
        if not (self.encoder_length and self.decoder_length):
            return 0
        return self.max_prompt_length + self.max_new_tokens

    @property
    def _closed(self) -> str:
        return f" ({len(self.closing)} of them closing it)" if self.closing else ""

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,  # noqa: ARG002  none can join
    ) -> Decoder:
        """Begin to continue `prompts`.

        Raises:
            ConfigError: more tokens are wanted than the decoder can read.
            DataError: a prompt is longer than the encoder can read.
        """
        if 0 < self.max_new_tokens < max_new_tokens:
            raise ConfigError(
                f"gen.max_new_tokens = {max_new_tokens}: the decoder of {type(model).__name__} reads "
                f"{self.decoder_length} tokens, {len(self.opening)} of which begin every output; give at most "
                f"{self.max_new_tokens}"
            )
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(map(tuple, prompts)))}
        batch = Trajectories.stack(list(distinct), [[False] * len(prompt) for prompt in distinct], pad_id=self.pad_id)
        batch = batch.to(model.device)
        copies = None
        if len(distinct) < len(prompts):
            copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=model.device)
        inputs = self.lay_out(batch.tokens, batch.mask, batch.action_mask).inputs
        return Seq2SeqDecoder(
            model,
            inputs,
            copies=copies,
            max_new_tokens=max_new_tokens,
            heads=heads,
            autocast=autocast,
            speed=self.speed,
        )
