"""Run a decoder over real tokens only: padding never meets a linear layer, and no sequence sees another.

The hidden states of a batch are laid out as one row, `[1, N]` for its N real tokens, with explicit positions. Inside
the attention function alone, queries, keys and values are spread to `[B, heads, T, width]`, plain scaled-dot-product
attention runs, in groups of about one length where that pays, and its result is gathered back. Everything else of the
model works token by token and needs no change, so this holds for any `transformers` decoder that takes its attention
from the attention interface.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from rlcore.models.hub import quiet_transformers
from rlcore.models.settings import ALL_ON, SpeedConfig
from rlcore.models.speed import Refused
from rlcore.models.speed.attention_groups import CALL, AttentionGroups
from rlcore.models.speed.exactness import probe_tokens, probing, require_same
from rlcore.models.speed.prefixes import NOTHING, distinct_prefixes, every_prefix
from rlcore.types import to_device

PACKED = "rlcore_packed"
IGNORABLE = {
    "position_ids", "use_cache", "cache_position", "output_attentions", "output_router_logits", "sliding_window",
    "is_causal",
}  # fmt: skip
"""Keywords of an attention function that do not change what it computes here, or that are looked at by name."""


@attrs.frozen(eq=False)
class Packing:
    """Say where N packed tokens stand in the padded batch that attention sees, `[R, C]` positions.

    Attributes:
        indices: long[R * C], the packed token at each position; padding, which no token attends to, may hold any.
        positions: long[N], the position at which attention's result for each packed token is read.
        columns: C.
        lengths: long[R], real tokens of each row, which stand at its left end.
        in_groups: whether attention may run in groups of similar length (`rlcore.models.speed.attention_groups`).
        calls: how often attention ran, so that a model with other kinds of layers is found out.
    """

    indices: Tensor
    positions: Tensor
    columns: int
    lengths: Tensor
    in_groups: bool = True
    calls: list[int] = attrs.field(factory=lambda: [0])
    _groups: dict[int, AttentionGroups] = attrs.field(factory=dict, init=False)

    @property
    def is_dense(self) -> bool:
        """Tell whether there is neither padding nor a token that stands in several indices."""
        return len(self.positions) == len(self.indices)

    def unpack(self, packed: Tensor) -> Tensor:
        """Spread [1, heads, N, width] to [R, heads, C, width]."""
        heads, width = packed.shape[1], packed.shape[3]
        tokens = packed[0].transpose(0, 1)
        if not self.is_dense:
            tokens = tokens.index_select(0, self.indices)
        return tokens.reshape(-1, self.columns, heads, width).transpose(1, 2)

    def pack(self, padded: Tensor) -> Tensor:
        """Gather [R, heads, C, width] to [1, N, heads, width], the layout attention functions return."""
        tokens = padded.transpose(1, 2).reshape(len(self.indices), padded.shape[1], padded.shape[3])
        if not self.is_dense:
            tokens = tokens.index_select(0, self.positions)
        return tokens[None]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
        """Attend within each sequence: [1, heads, N, width] each to [1, N, heads, width]."""

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(
                q, k, v, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=k.shape[1] != q.shape[1]
            )

        groups = self._grouped(query)
        if groups is not None:
            return groups.attend(query, key, value, mix)
        return self.pack(mix(self.unpack(query), self.unpack(key), self.unpack(value)))

    def _grouped(self, query: Tensor) -> AttentionGroups | None:
        """Return the groups to attend in, the same for every layer; None where one rectangle is as good.

        Devices that are not busy with a small call keep to one.
        """
        width = query.shape[1] * query.shape[3]
        if (
            not self.in_groups
            or query.device.type != "cpu"
            or (len(self.indices) - len(self.positions)) * width <= CALL
        ):
            return None
        if width not in self._groups:
            self._groups[width] = AttentionGroups.of(self.indices, self.positions, self.lengths, width=width)
        return self._groups[width]


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packing: Packing | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend within each sequence of a packed batch; without `packing`, be plain scaled-dot-product attention.

    Raises:
        Refused: the family asks for something plain attention does not do, or the window is too short.
    """
    if packing is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out
    unknown = sorted(name for name, given in kwargs.items() if given is not None and name not in IGNORABLE)
    if unknown:
        raise Refused(f"its attention takes {', '.join(unknown)}")
    window = kwargs.get("sliding_window")
    if window is not None and window < packing.columns:
        raise Refused(f"its attention window of {window} tokens is shorter than the longest sequence")
    packing.calls[0] += 1
    return packing.attend(query, key, value, dropout=dropout, scaling=scaling), None


AttentionInterface.register(PACKED, packed_attention)
AttentionMaskInterface.register(PACKED, sdpa_mask)


class Packed(NamedTuple):
    """Hold a batch of M real tokens laid out as one row of N.

    Attributes:
        inputs: the keyword arguments of a packed forward pass.
        node: long[M], where in the row each real token stands, in row-major order; beside the tokens that were given.
    """

    inputs: dict[str, Any]
    node: Tensor


def pack(
    tokens: Tensor,
    mask: Tensor,
    *,
    share: bool = False,
    device: torch.device | None = None,
    speed: SpeedConfig = ALL_ON,
) -> Packed:
    """Lay the real tokens of long[B, T] out as one row, as if they stood at the left end of theirs.

    The layout is made on the host, where an array of numbers so small costs least: a device is waited for where it
    holds the tokens, and not again.

    Args:
        tokens: long[B, T].
        mask: bool[B, T], real tokens; they stand side by side in each row.
        share: read tokens that stand behind the same tokens once, which a causal model without noise cannot tell from
            reading them several times: a prompt and its G continuations, or equal continuations.
        device: where the model is; where the tokens are if left out.
        speed: which techniques of speed are switched on.
    """
    device = device or tokens.device
    ids, real = tokens.cpu().numpy(), mask.cpu().numpy()
    lengths = real.sum(1)
    width = int(lengths.max(initial=0))
    if not width:  # a model cannot run over nothing: it is given a token of which nothing is asked
        one = pack(tokens.new_zeros(1, 1), mask.new_ones(1, 1), device=device)
        return Packed(one.inputs, one.node[:0])
    inside = np.arange(width) < lengths[:, None]
    rows = np.full(inside.shape, NOTHING)
    rows[inside] = ids[real]
    order, owned = (distinct_prefixes if share and speed.prefixes else every_prefix)(rows, inside)
    # Numbers rise, so the largest at a token or above it is that of the last one that was to be read.
    number = np.where(owned, owned.cumsum().reshape(owned.shape) - 1, 0)
    number = np.maximum.accumulate(number, axis=0)
    node = np.empty_like(number)
    node[order] = number
    kept = owned.any(1)  # rows all of whose tokens are read in others need no attention of their own
    row, column = owned[kept].nonzero()

    def at_model(array: NDArray[Any]) -> Tensor:
        return to_device(torch.from_numpy(array), device)

    packing = Packing(
        at_model(number[kept].reshape(-1)),
        at_model(row * width + column),
        width,
        at_model(lengths[order][kept]),
        speed.attention_groups,
    )
    inputs = {
        "input_ids": at_model(rows[order][owned])[None],
        "position_ids": at_model(column)[None],
        # A four-dimensional mask is handed through untouched, which keeps the model from building one of its own.
        "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device),
        "packing": packing,
        "use_cache": False,
    }
    return Packed(inputs, to_device(torch.from_numpy(node[inside]), tokens.device))


def padded_inputs(tokens: Tensor, mask: Tensor) -> dict[str, Any]:
    """Return the keyword arguments of an ordinary forward pass over long[B, T]; positions count real tokens only."""
    return {
        "input_ids": tokens,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "attention_mask": mask.long(),
        "use_cache": False,
    }


def longest_packed(model: PreTrainedModel) -> int:
    """Switch `model` (with a head or without) to packed attention where that is exact.

    The model proves it on a small batch: as many attention calls as layers, and the result of an ordinary pass.

    Returns:
        Tokens of the longest sequence that may be packed.

    Raises:
        Refused: the family does not allow packing; the model is left as it was.
    """
    before = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    limit = min(_windows(model), default=2**31)
    if before not in ("sdpa", PACKED):
        raise Refused(f"its attention is {before!r}, not 'sdpa'")
    if limit < 3:
        raise Refused(f"its attention window is of {limit} tokens")
    try:
        with probing(model):
            _run_packed(model)
    except Refused:
        _attend_with(model, before)
        raise
    return limit


def _run_packed(model: PreTrainedModel) -> None:
    """Switch `model` to packed attention.

    Raises:
        Refused: its outputs then differ.
    """
    tokens = probe_tokens(model, 4)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]], device=model.device)
    expected = model(**padded_inputs(tokens, mask))[0][mask].float()
    _attend_with(model, PACKED)
    inputs = pack(tokens, mask).inputs
    got = model(**inputs)[0][0].float()
    calls, layers = inputs["packing"].calls[0], model.config.get_text_config().num_hidden_layers
    if calls != layers:
        raise Refused(f"{calls} of its {layers} layers attend as others do")
    require_same(model, "outputs of packed tokens", got, expected)


def _attend_with(model: PreTrainedModel, implementation: str) -> None:
    if model.config._attn_implementation != implementation:  # noqa: SLF001  as above
        with quiet_transformers():
            model.set_attn_implementation(implementation)


def _windows(model: PreTrainedModel) -> list[int]:
    """List the attention windows the configuration speaks of; sequences longer than any of them are not packed."""
    text = model.config.get_text_config().to_dict()
    return [int(text[name]) for name in ("sliding_window", "attention_chunk_size") if text.get(name)]
