"""Lay a batch of trajectories out as a model reads it: what differs between architectures, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import attrs
from torch import Tensor
from transformers import PreTrainedModel

from rlcore import ops
from rlcore.models.decoding import CausalDecoder, ReadHeads
from rlcore.models.packed_decoding import PackedDecoder, pays
from rlcore.models.packing import pack, padded_inputs
from rlcore.models.static_choice import StaticDecoding
from rlcore.protocols import Decoder


class Reader(Protocol):
    """The way from token sequences to a model and back."""

    @property
    def pads(self) -> bool:
        """Tell whether every sequence costs as much as the longest of its batch."""
        ...

    def read(
        self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, share: bool = False
    ) -> tuple[dict[str, Any], Tensor]:
        """Lay a batch out for one forward pass.

        Args:
            tokens: long[B, T].
            mask: bool[B, T], real tokens; they stand side by side in each row.
            action_mask: bool[B, T].
            share: what stands behind the same tokens may be read once, for the model says the same of it each time.

        Returns:
            the model's keyword arguments, and long[N], the positions in its flattened output that predict the chosen
            tokens, in row-major order of these.
        """
        ...

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> Decoder:
        """Begin to continue `prompts` with `model`; the arguments are those of `rlcore.models.decoding`."""
        ...


@attrs.frozen
class CausalReader:
    """Read a sequence from left to right, in one row with the others where the model allows it.

    Attributes:
        longest: tokens of the longest sequence that may run packed, 0 if none (`rlcore.models.packing`).
        pad_id: fills the left of shorter prompts; any id will do.
        static: makes decoders with tensors that stay in their places; None where they shall grow.
    """

    longest: int = 0
    pad_id: int = 0
    static: StaticDecoding | None = None

    @property
    def pads(self) -> bool:
        """Tell whether every sequence costs as much as the longest of its batch."""
        return self.longest == 0

    def read(
        self, tokens: Tensor, mask: Tensor, action_mask: Tensor, *, share: bool = False
    ) -> tuple[dict[str, Any], Tensor]:
        """Lay a batch out as `Reader.read` says."""
        rows = ops.predicting(action_mask)
        if mask.shape[1] <= self.longest or (self.longest and int(mask.sum(1).max()) <= self.longest):
            read = mask & ops.needed(mask, rows)
            packed = pack(tokens, read, share=share)
            return packed.inputs, packed.node[rows[read]]
        return padded_inputs(tokens, mask), rows.reshape(-1).nonzero()[:, 0]

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> Decoder:
        """Begin to continue `prompts`."""
        if self.static is not None:
            fixed = self.static.decoder(
                model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast
            )
            if fixed is not None:
                return fixed
        end = max(len(prompt) for prompt in prompts) + max_new_tokens
        packs = end <= self.longest
        if packs and pays(model, prompts, max_new_tokens):
            return PackedDecoder(model, prompts, max_new_tokens=max_new_tokens, heads=heads, autocast=autocast)
        return CausalDecoder(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, pad_id=self.pad_id, autocast=autocast,
            packs=packs,
        )  # fmt: skip
