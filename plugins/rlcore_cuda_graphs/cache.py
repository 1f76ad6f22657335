"""The inputs and the key-value cache of a decoding step, in tensors whose addresses never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


class PromptLayer(DynamicLayer):
    """One attention layer's keys and values of the prompts, in the types that the model computes them in.

    `DynamicLayer` would promote values to the type of the keys under autocast.
    """

    def __init__(self, *, is_sliding: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.is_sliding = is_sliding
        self.keys: Tensor
        self.values: Tensor

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - other kinds of layers use it
        **kwargs: Any,  # noqa: ARG002 - the same
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the prompts, float[B, heads, T, D] each."""
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = key_states, value_states
        return key_states, value_states


def prompt_cache(config: PreTrainedConfig) -> DynamicCache:
    """Return a cache for one prefill of a model whose layers hold keys and values of all tokens."""
    cache = DynamicCache(config=config)
    cache.layers = [PromptLayer(is_sliding=isinstance(layer, DynamicSlidingWindowLayer)) for layer in cache.layers]
    return cache


class StaticLayer(DynamicLayer):
    """One attention layer's keys and values in given buffers; new ones are written at index `column`, a device tensor.

    Attention gets the whole buffers; the mask hides the columns that hold nothing yet.

    Args:
        keys: float[b, heads, c, D].
        values: float[b, heads, c, D].
        column: long[1], the index of the present token. It stays on the device, so it may change between replays of a
            graph.
    """

    def __init__(self, keys: Tensor, values: Tensor, column: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.keys: Tensor = keys
        self.values: Tensor = values
        self.column = column
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - other kinds of layers use it
        **kwargs: Any,  # noqa: ARG002 - the same
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one token, float[b, heads, 1, D], and return the buffers."""
        self.keys.index_copy_(2, self.column, key_states)
        self.values.index_copy_(2, self.column, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Return the number of earlier tokens as a tensor: a Python number would become a constant of the graph."""
        return self.column[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - the buffers have one size
        """Return how many columns attention gets, and the index of the first."""
        return self.keys.shape[2], 0


@attrs.frozen
class LayerShape:
    """Heads, widths and types of one attention layer's buffers.

    Under autocast, keys and values differ in type where rotary embeddings multiply keys by float32 cosines.
    """

    heads: int
    key_width: int
    value_width: int
    key_dtype: torch.dtype
    value_dtype: torch.dtype

    @classmethod
    def of(cls, layer: PromptLayer) -> LayerShape:
        """Return the shape of a layer that is not empty."""
        keys, values = layer.keys, layer.values
        return cls(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype)


@attrs.frozen(eq=False)
class Bucket:
    """The tensors of a step over b rows and c columns; the first rows hold the sequences, the others are unused.

    Attributes:
        tokens: long[b, 1], the present tokens.
        starts: long[b, 1], the column of each sequence's first token.
        column: long[1], the column of the present tokens.
        columns: long[1, c], 0 to c - 1.
        cache: a `StaticLayer` for each attention layer.
    """

    tokens: Tensor
    starts: Tensor
    column: Tensor
    columns: Tensor
    cache: DynamicCache

    @property
    def layers(self) -> list[StaticLayer]:
        """Return the layers of the cache."""
        return self.cache.layers  # type: ignore[return-value]


class Arena:
    """Buffers that buckets of all shapes share; one bucket at a time is in use.

    Args:
        shapes: of each layer.
        rows: the largest b.
        cells: the largest b x c.
        device: where the buffers are allocated.
    """

    def __init__(self, shapes: Sequence[LayerShape], *, rows: int, cells: int, device: torch.device) -> None:
        self.shapes, self.rows, self.cells = tuple(shapes), rows, cells
        self._tokens = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self._starts = torch.zeros_like(self._tokens)
        self.column = torch.zeros(1, dtype=torch.long, device=device)
        self._stores = []
        for shape in shapes:
            kinds = (shape.key_width, shape.key_dtype), (shape.value_width, shape.value_dtype)
            stores = [torch.zeros(cells * shape.heads * width, dtype=dtype, device=device) for width, dtype in kinds]
            self._stores.append(stores)

    def holds(self, shapes: Sequence[LayerShape], rows: int, columns: int) -> bool:
        """Return whether a bucket of `rows` x `columns` fits."""
        return tuple(shapes) == self.shapes and rows <= self.rows and rows * columns <= self.cells

    def bucket(self, rows: int, columns: int) -> Bucket:
        """Return a bucket; one with fewer rows and as many columns shares the first rows of one with more."""

        def part(store: Tensor, heads: int, width: int) -> Tensor:
            return store[: rows * heads * columns * width].view(rows, heads, columns, width)

        cache = DynamicCache()
        for shape, (keys, values) in zip(self.shapes, self._stores, strict=True):
            held = part(keys, shape.heads, shape.key_width), part(values, shape.heads, shape.value_width)
            cache.layers.append(StaticLayer(*held, self.column))
        counted = torch.arange(columns, device=self.column.device)[None]
        return Bucket(self._tokens[:rows], self._starts[:rows], self.column, counted, cache)


def bucket_size(size: int, least: int) -> int:
    """Round up to one of at most four sizes between two powers of two, and to a multiple of `least`."""
    step = max(least, 1 << max(0, (size - 1).bit_length() - 3))
    return -(-size // step) * step
