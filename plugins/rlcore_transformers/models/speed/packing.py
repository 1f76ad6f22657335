"""Packing: run a decoder without padding, on one row `[1, N]` of the N real tokens of a batch.

Positions are explicit. Only the attention function unpacks queries, keys and values to `[B, heads, T, width]`, runs
scaled-dot-product attention within each sequence (in groups of similar length if that is faster), and packs the result
again. All other layers work token by token and need no change, so packing works for any `transformers` decoder that
takes its attention from the attention interface.

Also in this file: find tokens of a batch that follow equal prefixes: a causal model's outputs for them are equal; run
the attention of a packed batch in groups of sequences of similar length, each as wide as its own longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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

from rlcore.types import to_device
from rlcore_transformers.models.hub import quiet_transformers
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig
from rlcore_transformers.models.speed import TechniqueRefused
from rlcore_transformers.models.speed.activations import cut, probe_tokens, probing, require_same

CALL = 6_000
"""Elements of padding (positions times the width of all heads) that take a CPU about as long as one more call of
attention, forward and backward."""


@attrs.frozen(eq=False)
class AttentionGroups:
    """Mapping between N packed tokens and the padded rectangles, one per group, in which attention runs.

    Attributes:
        indices: long[S], the packed token at each position of all rectangles, one after another; any token at padding.
        positions: long[N], the position that holds the attention output of each packed token.
        shapes: rows and columns of each rectangle.
    """

    indices: Tensor
    positions: Tensor
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, indices: Tensor, positions: Tensor, lengths: Tensor, *, width: int) -> AttentionGroups:
        """Split the rows of one rectangle into groups; all tensors are on the host.

        Args:
            indices: long[R * C], as in `rlcore_transformers.models.speed.packing.Packing`.
            positions: long[N], likewise.
            lengths: long[R], real tokens of each row, left-aligned.
            width: elements of one token in all heads of the queries.
        """
        columns = len(indices) // len(lengths)
        rectangle, at, num_tokens = indices.numpy().reshape(-1, columns), positions.numpy(), lengths.numpy()
        order = (-num_tokens).argsort(kind="stable")
        first_rows = cut(num_tokens[order].tolist(), each=CALL // width)
        group_indices, shapes, offset = [], [], 0
        row_starts = np.empty_like(num_tokens)
        for rows in np.split(order, first_rows[1:]):
            longest = max(int(num_tokens[rows[0]]), 1)
            group_indices.append(rectangle[rows, :longest].reshape(-1))
            row_starts[rows] = offset + longest * np.arange(len(rows))
            shapes.append((len(rows), longest))
            offset += len(rows) * longest
        group_positions = row_starts[at // columns] + at % columns
        return cls(torch.from_numpy(np.concatenate(group_indices)), torch.from_numpy(group_positions), tuple(shapes))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mix: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Attend group by group: [1, heads, N, width] each to [1, N, heads, width].

        Args:
            query: queries of all packed tokens.
            key: keys, possibly of fewer heads.
            value: values, possibly of fewer heads.
            mix: attention function within the rows of [R, heads, C, width] each.
        """
        mixed = [mix(*each) for each in zip(*map(self._spread, (query, key, value)), strict=True)]
        rows = [group.transpose(1, 2).reshape(-1, group.shape[1], group.shape[3]) for group in mixed]
        return torch.cat(rows).index_select(0, self.positions)[None]

    def _spread(self, packed: Tensor) -> list[Tensor]:
        """Gather [1, heads, N, width] into one [R, heads, C, width] per group."""
        heads, width = packed.shape[1], packed.shape[3]
        spread = packed[0].transpose(0, 1).index_select(0, self.indices)
        parts = spread.split([rows * columns for rows, columns in self.shapes])
        return [part.view(*shape, heads, width).transpose(1, 2) for part, shape in zip(parts, self.shapes, strict=True)]


NOTHING = -1
"""Padding value for the byte-wise sort. All its bits are ones, so it sorts last: a row that is a prefix of another
comes after it and owns no tokens."""
WORTH = 0.9
"""Tokens are shared only if at most this fraction of them remains to be computed."""


class Prefixes(NamedTuple):
    """The tokens of B rows to compute so that every prefix of every row is covered.

    Attributes:
        order: long[B], the rows sorted so that rows with equal prefixes are neighbours.
        owned: bool[B, C], in that order: True for tokens whose prefix differs from that of the row before. Any other
            real token has the same output as the token above it in its column.
    """

    order: NDArray[np.int64]
    owned: NDArray[np.bool_]


def every_prefix(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:  # noqa: ARG001  the tokens do not matter
    """Compute every token separately; the arguments are those of `distinct_prefixes`."""
    return Prefixes(np.arange(len(real)), real)


def distinct_prefixes(rows: NDArray[np.int64], real: NDArray[np.bool_]) -> Prefixes:
    """Compute tokens after equal prefixes once, if that saves enough tokens (`WORTH`).

    Rows sorted as byte strings have equal prefixes next to each other, so each row is compared only with the one before
    it. The order of the rows has no other meaning.

    Args:
        rows: long[B, C], tokens, and NOTHING after the last token of a row.
        real: bool[B, C], True for tokens.
    """
    every = every_prefix(rows, real)
    if not rows.size:
        return every
    whole = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
    order = whole[:, 0].argsort(kind="stable")
    ordered = rows[order]
    owned = real[order]
    owned[1:] &= ~np.logical_and.accumulate(ordered[1:] == ordered[:-1], axis=1)
    return Prefixes(order, owned) if owned.sum() <= WORTH * real.sum() else every


PACKED = "rlcore_packed"
IGNORABLE = {
    "position_ids", "use_cache", "cache_position", "output_attentions", "output_router_logits", "sliding_window",
    "is_causal",
}  # fmt: skip
"""Keyword arguments of attention functions that do not change the result here, or that are handled by name."""


@attrs.frozen(eq=False)
class Packing:
    """Mapping between N packed tokens and the padded batch of `[R, C]` positions in which attention runs.

    Attributes:
        indices: long[R * C], the packed token at each position; any token at padding, which is never attended to.
        positions: long[N], the position that holds the attention output of each packed token.
        columns: C.
        lengths: long[R], real tokens of each row, left-aligned.
        in_groups: whether attention may run in groups of similar length (`attention_groups`).
        calls: number of attention calls, to detect models in which some layers do not use this function.
        is_dense: whether there is neither padding nor a token shared by several rows.
    """

    indices: Tensor
    positions: Tensor
    columns: int
    lengths: Tensor
    in_groups: bool = True
    calls: list[int] = attrs.field(factory=lambda: [0])
    is_dense: bool = attrs.field(init=False)
    _groups: dict[int, AttentionGroups] = attrs.field(factory=dict, init=False)

    @is_dense.default
    def _no_gathering(self) -> bool:
        return len(self.positions) == len(self.indices)

    def unpack(self, packed: Tensor) -> Tensor:
        """Gather [1, heads, N, width] into [R, heads, C, width]."""
        heads, width = packed.shape[1], packed.shape[3]
        tokens = packed[0].transpose(0, 1)
        if not self.is_dense:
            tokens = tokens.index_select(0, self.indices)
        return tokens.reshape(-1, self.columns, heads, width).transpose(1, 2)

    def pack(self, padded: Tensor) -> Tensor:
        """Gather [R, heads, C, width] into [1, N, heads, width], the layout that attention functions return."""
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
        """Return the groups of rows for attention, the same for every layer; None if one rectangle is as fast.

        Other devices than CPUs always use one rectangle, since small calls do not occupy them.
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
    """Attend within each sequence of a packed batch; without `packing`, run plain scaled-dot-product attention.

    Raises:
        TechniqueRefused: the family passes arguments that plain attention does not support, or its window is too short.
    """
    if packing is None:
        out: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return out
    unknown = sorted(name for name, given in kwargs.items() if given is not None and name not in IGNORABLE)
    if unknown:
        raise TechniqueRefused(f"its attention takes {', '.join(unknown)}")
    window = kwargs.get("sliding_window")
    if window is not None and window < packing.columns:
        raise TechniqueRefused(f"its attention window of {window} tokens is shorter than the longest sequence")
    packing.calls[0] += 1
    return packing.attend(query, key, value, dropout=dropout, scaling=scaling), None


AttentionInterface.register(PACKED, packed_attention)

_is_padded: ContextVar[bool | None] = ContextVar("is_padded", default=None)


@contextmanager
def padding_known(is_padded: bool) -> Iterator[None]:
    """Build masks inside without a read from the device, which transformers makes to find whether a token is masked."""
    token = _is_padded.set(is_padded)
    try:
        yield
    finally:
        _is_padded.reset(token)


def packed_mask(*, attention_mask: Tensor | None = None, **options: Any) -> Tensor | None:
    """Return the mask that `sdpa_mask` returns; inside `padding_known` no value of `attention_mask` is read for it."""
    known = _is_padded.get()
    if known is not None:
        attention_mask = attention_mask if known else None
        options["allow_is_causal_skip"] = not known and options.get("allow_is_causal_skip", True)
    return sdpa_mask(attention_mask=attention_mask, **options)


AttentionMaskInterface.register(PACKED, packed_mask)


class Packed(NamedTuple):
    """A batch of M real tokens, packed into one row of N.

    Attributes:
        inputs: the keyword arguments of a packed forward pass.
        node: long[M], the index in the row of each real token, in row-major order; on the device of the given tokens.
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
    """Pack the real tokens of long[B, T] into one row, as if each sequence were left-aligned.

    The indices are computed on the host, where such small arrays cost least; an accelerator is synchronised once if it
    holds the tokens.

    Args:
        tokens: long[B, T].
        mask: bool[B, T], True for real tokens, which are contiguous in each row.
        share: compute tokens after equal prefixes once, such as a prompt with G continuations; exact for a causal model
            without dropout.
        device: the model's device; that of the tokens if omitted.
        speed: which techniques of speed are switched on.
    """
    device = device or tokens.device
    ids, real = tokens.cpu().numpy(), mask.cpu().numpy()
    lengths = real.sum(1)
    width = int(lengths.max(initial=0))
    if not width:  # a model cannot run on an empty batch: it gets one token whose output is not used
        one = pack(tokens.new_zeros(1, 1), mask.new_ones(1, 1), device=device)
        return Packed(one.inputs, one.node[:0])
    inside = np.arange(width) < lengths[:, None]
    rows = np.full(inside.shape, NOTHING)
    rows[inside] = ids[real]
    order, owned = (distinct_prefixes if share and speed.prefixes else every_prefix)(rows, inside)
    # Packed indices increase down each column, so a running maximum maps a shared token to the row that owns it.
    number = np.where(owned, owned.cumsum().reshape(owned.shape) - 1, 0)
    number = np.maximum.accumulate(number, axis=0)
    node = np.empty_like(number)
    node[order] = number
    kept = owned.any(1)  # a row that owns no token needs no attention of its own
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
        # A four-dimensional mask is passed through unchanged, which keeps the model from building its own.
        "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.long, device=device),
        "packing": packing,
        "use_cache": False,
    }
    return Packed(inputs, to_device(torch.from_numpy(node[inside]), tokens.device))


def padded_inputs(tokens: Tensor, mask: Tensor) -> dict[str, object]:
    """Return the keyword arguments of an ordinary forward pass over long[B, T]; positions count real tokens only."""
    return {
        "input_ids": tokens,
        "position_ids": (mask.cumsum(1) - 1).clamp(min=0),
        "attention_mask": mask.long(),
        "use_cache": False,
    }


def longest_packed(model: PreTrainedModel) -> int:
    """Switch `model` (with or without a head) to packed attention.

    A small batch must have as many attention calls as layers, and the outputs of a padded forward pass.

    Returns:
        Tokens of the longest sequence that may be packed.

    Raises:
        TechniqueRefused: the family does not allow packing; the model is left as it was.
    """
    before = model.config._attn_implementation  # noqa: SLF001  transformers has no public name for it
    limit = min(_windows(model), default=2**31)
    if before not in ("sdpa", PACKED):
        raise TechniqueRefused(f"its attention is {before!r}, not 'sdpa'")
    if limit < 3:
        raise TechniqueRefused(f"its attention window is of {limit} tokens")
    try:
        with probing(model):
            _run_packed(model)
    except TechniqueRefused:
        _attend_with(model, before)
        raise
    return limit


def _run_packed(model: PreTrainedModel) -> None:
    """Switch `model` to packed attention.

    Raises:
        TechniqueRefused: its outputs then differ.
    """
    tokens = probe_tokens(model, 4)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]], device=model.device)
    expected = model(**padded_inputs(tokens, mask))[0][mask].float()
    _attend_with(model, PACKED)
    inputs = pack(tokens, mask).inputs
    got = model(**inputs)[0][0].float()
    calls, layers = inputs["packing"].calls[0], model.config.get_text_config().num_hidden_layers
    if calls != layers:
        raise TechniqueRefused(f"{calls} of its {layers} layers use the attention interface")
    require_same(model, "outputs of packed tokens", got, expected)


def _attend_with(model: PreTrainedModel, implementation: str) -> None:
    if model.config._attn_implementation != implementation:  # noqa: SLF001  as above
        with quiet_transformers():
            model.set_attn_implementation(implementation)


def _windows(model: PreTrainedModel) -> list[int]:
    """Return the attention windows in the configuration; sequences longer than the shortest are not packed."""
    text = model.config.get_text_config().to_dict()
    return [int(text[name]) for name in ("sliding_window", "attention_chunk_size") if text.get(name)]
