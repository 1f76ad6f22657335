"""Keys, values and what else a decoding step reads, in tensors that stay where they are while their contents change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlcore.models.decoding.cache import PreallocatedLayer


class StaticLayer(DynamicLayer):
    """Keep one attention layer's keys and values in given buffers, and write new ones at a column a tensor tells.

    Attention is always handed the whole buffers; the mask says what of them counts.

    Args:
        keys: float[b, heads, c, D].
        values: float[b, heads, c, D].
        column: long[1], where the token being read goes; read on the device, so that it may differ from run to run of
            a recorded graph.
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
        *args: Any,  # noqa: ARG002 - what other kinds of layers are told
        **kwargs: Any,  # noqa: ARG002 - the same
    ) -> tuple[Tensor, Tensor]:
        """Write the keys and values of one token, float[b, heads, 1, D], and return the buffers."""
        self.keys.index_copy_(2, self.column, key_states)
        self.values.index_copy_(2, self.column, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> Any:
        """Count the tokens held before the one being read, as a tensor: no number of one run gets into a graph."""
        return self.column[0]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:  # noqa: ARG002 - it makes no difference here
        """Return the columns attention sees, and the first of them."""
        return self.keys.shape[2], 0


@attrs.frozen
class LayerShape:
    """Describe one attention layer's buffers: heads, and the widths and types of keys and of values.

    Under autocast the types differ where keys are turned by float32 cosines, as rotary positions have it.
    """

    heads: int
    key_width: int
    value_width: int
    key_dtype: torch.dtype
    value_dtype: torch.dtype

    @classmethod
    def of(cls, layer: PreallocatedLayer) -> LayerShape:
        """Read the shape off a layer that holds something."""
        keys, values = layer.keys, layer.values
        return cls(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype, values.dtype)


@attrs.frozen(eq=False)
class Bucket:
    """Hold the tensors of a step over b rows and c columns; row i is a sequence, as long as there are so many.

    Attributes:
        tokens: long[b, 1], being read.
        starts: long[b, 1], the column each sequence begins at.
        column: long[1], the column being read.
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
    """Allocate once what the buckets of any shape share; only one of them is in use at a time.

    Args:
        shapes: of each layer.
        rows: b at most.
        cells: b x c at most.
        device: where.
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
        """Tell whether a bucket of `rows` x `columns` fits in."""
        return tuple(shapes) == self.shapes and rows <= self.rows and rows * columns <= self.cells

    def bucket(self, rows: int, columns: int) -> Bucket:
        """Return the tensors of one shape; a bucket with fewer rows sees the first rows of one with more."""

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
