"""Build a model's inputs from a batch of trajectories; everything in which architectures differ is behind this.

Also in this file: build the inputs of an encoder-decoder from a batch of trajectories; the kinds of language models,
decoder-only, encoder-decoder and those of packages, and the architecture of each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol

import attrs
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, PretrainedConfig, PreTrainedModel

from rlcore import ops
from rlcore.config import evolve
from rlcore.config.yaml_files import existing_path
from rlcore.errors import ConfigError, DataError, ModelError
from rlcore.plugins.registry import services
from rlcore.protocols import Decoder, DecoderRequest
from rlcore.types import Trajectories, to_device
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder, ReadHeads, Seq2SeqDecoder
from rlcore_transformers.models.gguf import DAMAGED, find_gguf, read_config
from rlcore_transformers.models.hub import base_of, is_hub_id, quiet_transformers, why_out_of_reach
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig
from rlcore_transformers.models.speed.packing import pack, padded_inputs


class ModelInputs(NamedTuple):
    """The inputs of one forward pass, on the model's device.

    Attributes:
        inputs: the model's keyword arguments.
        rows: long[N], positions in the model's flattened output that predict the chosen tokens.
        chosen: long[N], the chosen tokens, in row-major order.
    """

    inputs: dict[str, Any]
    rows: Tensor
    chosen: Tensor


class InputLayout(Protocol):
    """How token sequences become a model's inputs, and how prompts are decoded."""

    @property
    def speed(self) -> SpeedConfig:
        """Return which techniques of speed are switched on."""
        ...

    @property
    def pads(self) -> bool:
        """Return whether sequences are padded to the longest of their batch."""
        ...

    def lay_out(self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, share: bool = False) -> ModelInputs:
        """Build the inputs of one forward pass.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], True for real tokens, which are contiguous in each row.
            action_mask: bool[B, T], True for chosen tokens.
            share: tokens after equal prefixes may be computed once, because the model is deterministic.
        """
        ...

    def lockstep(self) -> InputLayout:
        """Return this layout without groups of sequences, whose number depends on the batch."""
        ...

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,
    ) -> Decoder:
        """Return a decoder of `prompts`; the arguments are those of `ModelPolicy.decoder`."""
        ...


@attrs.frozen
class CausalLayout:
    """Inputs of a decoder-only model: packed into one row if the model allows it, else padded.

    Attributes:
        longest: tokens of the longest sequence that may run packed, 0 if none (`packing`).
        pad_id: fills shorter prompts on the left; any id of the vocabulary.
        speed: which techniques of speed are switched on.
    """

    longest: int = 0
    pad_id: int = 0
    speed: SpeedConfig = ALL_ON

    @property
    def pads(self) -> bool:
        """Return whether sequences are padded to the longest of their batch."""
        return self.longest == 0

    def lay_out(self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, share: bool = False) -> ModelInputs:
        """Build inputs as documented in `InputLayout.lay_out`."""
        width = mask.shape[1] if mask.shape[1] <= self.longest or not self.longest else int(mask.sum(1).max())
        if width > self.longest:
            rows = ops.predicting(action_mask).reshape(-1).nonzero()[:, 0]
            return ModelInputs(padded_inputs(tokens, mask), rows, tokens[action_mask])
        device = tokens.device
        tokens, mask, action_mask = tokens.cpu(), mask.cpu(), action_mask.cpu()
        rows = ops.predicting(action_mask)
        read = mask & ops.needed(mask, rows)
        packed = pack(tokens, read, share=share, device=device, speed=self.speed)
        return ModelInputs(
            packed.inputs, to_device(packed.node[rows[read]], device), to_device(tokens[action_mask], device)
        )

    def lockstep(self) -> CausalLayout:
        """Return this layout without groups of sequences."""
        return attrs.evolve(self, speed=evolve(self.speed, length_groups=False))

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,
    ) -> Decoder:
        """Return the decoder that a plugin makes (`rlcore.hookspecs.Services`), else a `CausalDecoder`."""
        packs = max(len(prompt) for prompt in prompts) + max_new_tokens <= self.longest
        request = DecoderRequest(
            model=model, prompts=prompts, max_new_tokens=max_new_tokens, speed=self.speed, read_heads=heads,
            autocast=autocast, packs=packs, waiting=waiting,
        )  # fmt: skip
        return services().decoder(request) or CausalDecoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast,
            packs=packs, speed=self.speed,
        )  # fmt: skip


@attrs.frozen
class Seq2SeqLayout:
    """Inputs of an encoder-decoder: the encoder gets the tokens before the first chosen one, the decoder the rest.

    The decoder's tokens may include turns of other speakers in a dialogue; these are inputs only and predict nothing.
    Both sides start at column 0 however the batch is padded, because some families count positions from column 0.

    Attributes:
        opening: tokens that the decoder's input starts with, at least one.
        closing: tokens appended to the encoder's input unless it ends with them already.
        encoder_length: maximum tokens of the encoder's input, `closing` included; 0 without a bound.
        decoder_length: maximum tokens of the decoder's input, `opening` included; 0 without a bound.
        pad_id: fills shorter rows on the right; any id of the vocabulary.
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
        share: bool = False,  # noqa: ARG002  an encoder attends to later tokens too
    ) -> ModelInputs:
        """Build inputs as documented in `rlcore_transformers.models.input_layout.InputLayout.lay_out`.

        Raises:
            DataError: a sequence is longer than the encoder's or the decoder's maximum.
        """
        real = mask | action_mask  # a token that is only scored, after the end of a sequence, is not in the mask
        begun = action_mask.cumsum(1) > 0
        source, target = real & ~begun, real & begun
        encoder_ids, encoder_mask = self._encoder_inputs(tokens[source], source.sum(1, keepdim=True))
        columns = target.cumsum(1) - 1
        last = (columns * action_mask).amax(1, keepdim=True)
        decoder_ids = self._decoder_inputs(tokens[target & (columns < last)], last)
        before = torch.arange(len(tokens), device=tokens.device)[:, None] * decoder_ids.shape[1] + len(self.opening) - 1
        inputs = {
            "input_ids": encoder_ids,
            "attention_mask": encoder_mask,
            "decoder_input_ids": decoder_ids,
            "use_cache": False,
        }
        return ModelInputs(inputs, (before + columns)[action_mask], tokens[action_mask])

    def _encoder_inputs(self, flat: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Stack B texts of `lengths`, long[B, 1], tokens and append `closing`: ids and mask, long[B, E]."""
        columns = torch.arange(int(lengths.max()) + len(self.closing), device=flat.device)
        ids = flat.new_full((len(lengths), len(columns)), self.pad_id)
        ids = ids.masked_scatter(columns < lengths, flat)
        if self.closing:
            end = flat.new_tensor(self.closing)
            tail = torch.arange(len(self.closing), device=flat.device)
            tails = ids.gather(1, (lengths - len(end) + tail).clamp(min=0))
            is_closed = (lengths >= len(end)) & (tails == end).all(1, keepdim=True)
            ids = ids.scatter(1, lengths + tail, end.expand(len(ids), -1))
            lengths = lengths + len(end) * ~is_closed
        if 0 < self.encoder_length < int(lengths.max()):
            raise DataError(
                f"a prompt has {int(lengths.max())} tokens{self._closed}, more than the {self.encoder_length} that the "
                f"model's encoder accepts: set data.max_prompt_tokens to {self.max_prompt_length} to cut prompts on "
                "the left, or shorten the text before a sample's first output"
            )
        return ids, (columns < lengths).long()

    def _decoder_inputs(self, flat: Tensor, lengths: Tensor) -> Tensor:
        """Stack B continuations of `lengths`, long[B, 1], tokens after `opening`: long[B, D]."""
        start = len(self.opening)
        width = start + int(lengths.max())
        if 0 < self.decoder_length < width:
            raise DataError(
                f"from its first output on, a sequence has {width - start + 1} tokens, more than the "
                f"{self.max_new_tokens} that the model's decoder accepts: shorten the outputs, or set "
                "data.max_sample_tokens to cut samples on the right"
            )
        columns = torch.arange(width, device=flat.device)
        ids = flat.new_full((len(lengths), width), self.pad_id)
        ids[:, :start] = flat.new_tensor(self.opening)
        return ids.masked_scatter((columns >= start) & (columns < start + lengths), flat)

    @property
    def max_prompt_length(self) -> int:
        """Return the maximum tokens of a prompt; 0 without a bound."""
        return max(self.encoder_length - len(self.closing), 0)

    @property
    def max_new_tokens(self) -> int:
        """Return the maximum tokens from the first chosen one on; 0 without a bound."""
        return max(self.decoder_length - len(self.opening), 0)

    @property
    def max_length(self) -> int:
        """Return the maximum tokens of a whole sequence; 0 without a bound."""
        if not (self.encoder_length and self.decoder_length):
            return 0
        return self.max_prompt_length + self.max_new_tokens

    @property
    def _closed(self) -> str:
        return f" ({len(self.closing)} of them closing it)" if self.closing else ""

    def lockstep(self) -> Seq2SeqLayout:
        """Return this layout without groups of sequences."""
        return attrs.evolve(self, speed=evolve(self.speed, length_groups=False))

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
        waiting: int = 0,  # noqa: ARG002  prompts cannot join this decoder
    ) -> Decoder:
        """Return a decoder of `prompts`.

        Raises:
            ConfigError: `max_new_tokens` exceeds the decoder's maximum.
            DataError: a prompt is longer than the encoder's maximum.
        """
        if 0 < self.max_new_tokens < max_new_tokens:
            raise ConfigError(
                f"gen.max_new_tokens = {max_new_tokens}: the decoder of {type(model).__name__} accepts "
                f"{self.decoder_length} tokens, {len(self.opening)} of which start every output; give at most "
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


@attrs.frozen
class Kind:
    """A kind of language models.

    Attributes:
        architecture: name of the core's architecture for this kind.
        words: name in messages.
        examples: families of this kind.
        loader: the auto class of `transformers` that loads it.
    """

    architecture: str
    words: str
    examples: str
    loader: Any


DECODER_ONLY = Kind("causal_lm", "decoder-only", "gpt2 or llama", AutoModelForCausalLM)
ENCODER_DECODER = Kind("seq2seq_lm", "encoder-decoder", "t5 or bart", AutoModelForSeq2SeqLM)

FURTHER: dict[Kind, Callable[[PretrainedConfig], bool]] = {}
"""Kinds that packages add: whether a configuration is of the kind. Decoder-only models are loaded as such by name."""


def kind_of(config: PretrainedConfig) -> Kind:
    """Return the kind of the model that `config` describes."""
    for kind, describes in FURTHER.items():
        if describes(config):
            return kind
    return ENCODER_DECODER if getattr(config, "is_encoder_decoder", False) else DECODER_ONLY


def check_kind(config: PretrainedConfig, wanted: Kind, name: str) -> None:
    """Check that a model is of the kind that an architecture takes.

    Raises:
        ModelError: the model is of the other kind.
    """
    found = kind_of(config)
    if found is wanted or (found in FURTHER and wanted is DECODER_ONLY):  # a model of texts and images reads texts
        return
    article = "an" if found is ENCODER_DECODER else "a"
    raise ModelError(
        f"{name} is {article} {found.words} model ({config.model_type}); the architecture {wanted.architecture} takes "
        f"{wanted.words} models such as {wanted.examples}: set model.architecture={found.architecture}, or leave it "
        "out, or give another model"
    )


def without_wrapper(spec: object) -> object:
    """Return the model in a `PeftModel`, with its adapter in it; anything else as it is."""
    peft = sys.modules.get("peft")
    return spec.get_base_model() if peft is not None and isinstance(spec, peft.PeftModel) else spec


def declared(spec: object, revision: str | None = None) -> PretrainedConfig | None:
    """Return the configuration of the model that `spec` names; None if it cannot be read.

    This raises no error, because loading the model afterwards raises a better one.
    """
    spec = without_wrapper(spec)
    if isinstance(spec, PreTrainedModel):
        return spec.config
    if isinstance(spec, PretrainedConfig):
        return spec
    if not isinstance(spec, (str, os.PathLike)):
        return None
    spec = base_of(os.fspath(spec)) or spec
    folder = existing_path(spec)
    if folder is None and (not is_hub_id(os.fspath(spec)) or why_out_of_reach(spec, revision)):
        return None
    try:
        with quiet_transformers():
            if (gguf := find_gguf(spec)) is not None:
                return read_config(gguf)
            where = os.fspath(folder or spec)
            config: PretrainedConfig = AutoConfig.from_pretrained(
                where, revision=revision or "main", trust_remote_code=False
            )
    except (ModelError, AttributeError, ImportError, *DAMAGED):
        return None
    return config


def fits_causal_lm(spec: object, revision: str | None) -> int:
    """Return 1: of a model that no other architecture takes, loading it as a decoder-only one says what is wrong."""
    del spec, revision
    return 1


def fits_seq2seq_lm(spec: object, revision: str | None) -> int:
    """Return 2 if a model is an encoder-decoder, otherwise 0."""
    config = declared(spec, revision)
    return 2 if config is not None and kind_of(config) is ENCODER_DECODER else 0
