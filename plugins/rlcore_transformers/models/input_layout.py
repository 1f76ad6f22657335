"""Build a model's inputs from a batch of trajectories; everything in which architectures differ is behind this."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import attrs
from torch import Tensor
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.config import evolve
from rlcore.plugins.fence import first_result
from rlcore.protocols import Decoder, DecoderRequest
from rlcore.types import to_device
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder, ReadHeads
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
        """Return the decoder that a plugin makes (`rlcore.hookspecs.make_decoder`), else a `CausalDecoder`."""
        packs = max(len(prompt) for prompt in prompts) + max_new_tokens <= self.longest
        request = DecoderRequest(
            model=model, prompts=prompts, max_new_tokens=max_new_tokens, speed=self.speed, read_heads=heads,
            autocast=autocast, packs=packs, waiting=waiting,
        )  # fmt: skip
        made: Decoder | None = first_result("make_decoder", request=request)
        return made or CausalDecoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast,
            packs=packs, speed=self.speed,
        )  # fmt: skip
