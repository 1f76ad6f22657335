"""One decoding step as a function of static tensors, run directly or replayed from a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlcore.logging import get_logger
from rlcore_cuda_graphs.cache import Arena, Bucket, LayerShape
from rlcore_cuda_graphs.graphs import Graph

MAX_GRAPHS = 32
"""Graphs that are kept; the oldest is dropped first."""
Autocast = Callable[[], AbstractContextManager[Any]]
ReadHeads = Callable[[Tensor], tuple[Tensor | None, Tensor | None]]
"""From the input of the output embeddings, float[B, H], to values, float[B], and advantages, float[B, V]."""

log = get_logger("decoding")


@attrs.frozen(eq=False)
class PlacedStep:
    """The forward pass of one token of every row of a bucket.

    Attributes:
        bucket: the inputs and the cache.
        run: returns logits, float[b, V], and the input of the output embeddings, float[b, H]. The next run may
            overwrite both.
    """

    bucket: Bucket
    run: Callable[[], tuple[Tensor, ...]]


class Workspace:
    """The buffers of a model's steps, and a graph of each step that has been run.

    A graph stays valid while parameters keep their addresses; in-place optimizer updates are picked up.

    Args:
        model: in evaluation mode whenever a step is run.
        autocast: makes the context of precision that the model is run in.
        make_graph: makes a graph to capture a step with; without it, steps are run directly.

    Attributes:
        failure: why a step could not be captured, None if every step could.
    """

    def __init__(
        self, model: PreTrainedModel, autocast: Autocast, make_graph: Callable[[], Graph] | None = None
    ) -> None:
        self._model, self._autocast, self._make_graph = model, autocast, make_graph
        self.failure: str | None = None
        self._arena: Arena | None = None
        self._steps: dict[tuple[int, int], PlacedStep] = {}

    def lend(self, _borrower: object) -> Workspace:
        """Return this workspace, for a decoder that is its only user."""
        return self

    @property
    def num_steps(self) -> int:
        """Count the steps that are kept."""
        return len(self._steps)

    def step(self, shapes: Sequence[LayerShape], rows: int, columns: int) -> PlacedStep:
        """Return the step over a bucket of `rows` x `columns`; make it, and enlarge the buffers, where needed.

        A step of fewer rows and as many columns reads the cache that one of more rows wrote for its first rows.
        """
        arena = self._arena
        if arena is None or not arena.holds(shapes, rows, columns):
            self._steps.clear()
            most_rows = rows if arena is None else max(rows, arena.rows)
            cells = rows * columns if arena is None else max(rows * columns, arena.cells)
            self._arena = arena = None  # frees the old buffers before the new ones are allocated
            self._arena = arena = Arena(shapes, rows=most_rows, cells=cells, device=self._model.device)
        if (rows, columns) not in self._steps:
            while len(self._steps) >= MAX_GRAPHS:
                del self._steps[next(iter(self._steps))]
            self._steps[rows, columns] = self._make(arena.bucket(rows, columns))
        return self._steps[rows, columns]

    def _make(self, bucket: Bucket) -> PlacedStep:
        def call() -> tuple[Tensor, ...]:
            return forward_token(self._model, bucket, self._autocast)

        if self._make_graph is None:
            return PlacedStep(bucket, call)
        graph = self._make_graph()
        try:
            outputs = graph.capture(call)
        except RuntimeError as error:  # what CUDA and torch raise when something cannot be captured
            self.failure = str(error).partition("\n")[0]
            log.warning("CUDA graph capture failed; the decoding step runs without a graph", reason=self.failure)
            return PlacedStep(bucket, call)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return outputs

        return PlacedStep(bucket, replay)


def forward_token(model: PreTrainedModel, bucket: Bucket, autocast: Autocast) -> tuple[Tensor, Tensor]:
    """Run `model` on `bucket.tokens` at `bucket.column`: logits, float[b, V], and the head's input, float[b, H].

    A repeated run has no further effect: it writes the same column of the cache.
    """
    visible = ((bucket.columns >= bucket.starts) & (bucket.columns <= bucket.column))[:, None, None]
    with autocast(), head_inputs(model.get_output_embeddings()) as hidden:
        logits = model(
            input_ids=bucket.tokens,
            attention_mask=_attention_mask(visible, model),  # transformers passes four-dimensional masks on unchanged
            position_ids=bucket.column - bucket.starts,
            past_key_values=bucket.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
    return logits[:, -1], hidden[0][:, -1]


@contextmanager
def head_inputs(head: nn.Module) -> Iterator[list[Tensor]]:
    """Collect the inputs of `head`, the output embeddings, one entry a call, while the context is open."""
    hidden: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, args: hidden.append(args[0]))
    try:
        yield hidden
    finally:
        hook.remove()


def _attention_mask(visible: Tensor, model: PreTrainedModel) -> Tensor:
    """Return the mask in the form that the model's attention takes: boolean, or additive for eager attention."""
    if model.config._attn_implementation != "eager":  # noqa: SLF001  transformers has no other way to ask
        return visible
    lowest = torch.finfo(model.dtype).min
    return torch.zeros_like(visible, dtype=model.dtype).masked_fill(~visible, lowest)
