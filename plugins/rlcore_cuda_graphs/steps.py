"""One step of decoding as a function of static tensors, run as it is or replayed from a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.logging import get_logger
from rlcore.models.head_input import head_reads
from rlcore_cuda_graphs.cache import Arena, Bucket, LayerShape
from rlcore_cuda_graphs.graphs import Graph

MOST_STEPS = 32
"""Recordings kept at once; the oldest goes first."""
Autocast = Callable[[], AbstractContextManager[Any]]

log = get_logger("decoding")


@attrs.frozen(eq=False)
class Step:
    """Read one token of every row of a bucket.

    Attributes:
        bucket: what is read, and where what is remembered lies.
        run: returns logits, float[b, V], and what the output embeddings read, float[b, H]. They may be written over by
            the next run.
    """

    bucket: Bucket
    run: Callable[[], tuple[Tensor, ...]]


class Workspace:
    """Keep the buffers of a model's steps, and a recording of each step there was.

    A recording holds as long as the weights stay where they are; that they change there is what it is for.

    Args:
        model: in evaluation mode whenever a step is run.
        autocast: makes the context of precision that the model is run in.
        make_graph: makes something to record with; steps are run as they are if left out.

    Attributes:
        failure: why a step could not be recorded, if one could not.
    """

    def __init__(
        self, model: PreTrainedModel, autocast: Autocast, make_graph: Callable[[], Graph] | None = None
    ) -> None:
        self._model, self._autocast, self._make_graph = model, autocast, make_graph
        self.failure: str | None = None
        self._arena: Arena | None = None
        self._steps: dict[tuple[int, int], Step] = {}

    def lend(self, _borrower: object) -> Workspace:
        """Hand this workspace out, to whoever has it alone."""
        return self

    @property
    def num_recorded(self) -> int:
        """Count the steps that are kept."""
        return len(self._steps)

    def step(self, shapes: Sequence[LayerShape], rows: int, columns: int) -> Step:
        """Return the step over a bucket of `rows` x `columns`, made now if there is none; buffers grow where they must.

        A step of fewer rows and as many columns goes on with what one of more rows remembers of its first rows.
        """
        arena = self._arena
        if arena is None or not arena.holds(shapes, rows, columns):
            self._steps.clear()
            most_rows = rows if arena is None else max(rows, arena.rows)
            cells = rows * columns if arena is None else max(rows * columns, arena.cells)
            self._arena = arena = None  # the old buffers go before the new ones come
            self._arena = arena = Arena(shapes, rows=most_rows, cells=cells, device=self._model.device)
        if (rows, columns) not in self._steps:
            while len(self._steps) >= MOST_STEPS:
                del self._steps[next(iter(self._steps))]
            self._steps[rows, columns] = self._make(arena.bucket(rows, columns))
        return self._steps[rows, columns]

    def _make(self, bucket: Bucket) -> Step:
        def call() -> tuple[Tensor, ...]:
            return read_token(self._model, bucket, self._autocast)

        if self._make_graph is None:
            return Step(bucket, call)
        graph = self._make_graph()
        try:
            outputs = graph.record(call)
        except RuntimeError as error:  # what CUDA and torch raise when something cannot be recorded
            self.failure = str(error).partition("\n")[0]
            log.warning("a decoding step cannot be recorded and is run as it is", reason=self.failure)
            return Step(bucket, call)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return outputs

        return Step(bucket, replay)


def read_token(model: PreTrainedModel, bucket: Bucket, autocast: Autocast) -> tuple[Tensor, Tensor]:
    """Read `bucket.tokens` at `bucket.column`: logits, float[b, V], and what the output embeddings read, float[b, H].

    Running it twice changes nothing more: it writes to that column of the cache alone.
    """
    seen = ((bucket.columns >= bucket.starts) & (bucket.columns <= bucket.column))[:, None, None]
    with autocast(), head_reads(model.get_output_embeddings()) as inputs:
        logits = model(
            input_ids=bucket.tokens,
            # Four-dimensional masks are handed through to attention as they are.
            attention_mask=_as_attention_takes_it(seen, model),
            position_ids=bucket.column - bucket.starts,
            past_key_values=bucket.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
    return logits[:, -1], inputs[0][:, -1]


def _as_attention_takes_it(seen: Tensor, model: PreTrainedModel) -> Tensor:
    if model.config._attn_implementation != "eager":  # noqa: SLF001  transformers has no other way to ask
        return seen
    lowest = torch.finfo(model.dtype).min
    return torch.zeros_like(seen, dtype=model.dtype).masked_fill(~seen, lowest)
