"""Decode in tensors of fixed shape and address, so that a GPU can capture a step once and replay it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.protocols import DecodeStep
from rlcore.types import tensor_on
from rlcore_cuda_graphs.cache import Bucket, LayerShape, PromptLayer, bucket_size, prompt_cache
from rlcore_cuda_graphs.steps import Autocast, PlacedStep, ReadHeads, Workspace, head_inputs

COLUMNS = 64
"""Buckets have a multiple of this many columns."""

Lend = Callable[["StaticDecoder"], Workspace]
"""Returns the workspace that a decoder uses from its first step to its last."""


class StaticDecoder:
    """Prefill prompts of different lengths in one batch, then decode one token of each at a time.

    The batch is rounded up to a bucket of rows and columns; unused rows are computed too, and their outputs dropped.
    All inputs of a step (tokens, indices, the cache) lie in tensors that keep their addresses, and no operation depends
    on a Python number, so the step can be captured in a graph.

    Args:
        model: an `AutoModelForCausalLM` in evaluation mode.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called.
        lend: returns the workspace.
        heads: computes values and advantages from hidden states; it runs after the step, outside of the graph.
        pad_id: fills the left of shorter prompts; any id of the vocabulary will do.
        autocast: makes the context of precision that the model is run in, the workspace's too.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        lend: Lend,
        heads: ReadHeads | None = None,
        pad_id: int = 0,
        autocast: Autocast = nullcontext,
    ) -> None:
        self.model, self.autocast, self._heads, self._lend = model, autocast, heads, lend
        self._prompts, self._pad_id = [tuple(prompt) for prompt in prompts], pad_id
        self._rows = len(prompts)
        self._length = max(len(prompt) for prompt in self._prompts)
        self._end = self._length + max_new_tokens
        self._workspace: Workspace
        self._shapes: list[LayerShape]
        self._step: PlacedStep

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Prefill the prompts, each distinct prompt once."""
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(self._prompts))}
        starts = [self._length - len(prompt) for prompt in distinct]
        logits, hidden, layers = self._prefill(list(distinct), starts)
        device = self.model.device
        copies = [distinct[prompt] for prompt in self._prompts]
        index = tensor_on(device, copies)
        self._shapes = [LayerShape.of(layer) for layer in layers]
        self._workspace = self._lend(self)
        rows, columns = bucket_size(self._rows, 1), bucket_size(self._end, COLUMNS)
        self._step = self._workspace.step(self._shapes, rows, columns)
        bucket = self._step.bucket
        bucket.column.fill_(self._length)
        bucket.starts.zero_()
        bucket.starts[: self._rows] = tensor_on(device, [[starts[i]] for i in copies])
        for layer, prefilled in zip(bucket.layers, layers, strict=True):
            for buffer, held in ((layer.keys, prefilled.keys), (layer.values, prefilled.values)):
                # Values of an earlier batch are masked, but an attention weight of 0 does not hide a NaN.
                buffer.zero_()
                buffer[: self._rows, :, : self._length] = held.index_select(0, index)
        return self._outputs(logits[index], hidden[index])

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B].

        Raises:
            ModelError: it is called more than `max_new_tokens` times.
        """
        if self._length >= self._end:
            raise ModelError(f"step was called more than max_new_tokens times: the buffers hold {self._end} tokens")
        bucket = self._step.bucket
        bucket.tokens[: self._rows] = tokens[:, None]
        outputs = self._step.run()
        self._length += 1
        bucket.column.add_(1)
        # The next run overwrites these outputs.
        logits, hidden = (array[: self._rows].clone() for array in outputs)
        return self._outputs(logits, hidden)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending); take a smaller bucket once it is half as large."""
        bucket, self._rows = self._step.bucket, len(rows)
        bucket.starts[: self._rows] = bucket.starts[rows]
        for layer in bucket.layers:
            for buffer in (layer.keys, layer.values):
                buffer[: self._rows, :, : self._length] = buffer[:, :, : self._length].index_select(0, rows)
        smaller, (present, columns) = bucket_size(self._rows, 1), _shape(bucket)
        if 2 * smaller <= present:
            self._step = self._workspace.step(self._shapes, smaller, columns)

    def _prefill(
        self, prompts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Sequence[PromptLayer]]:
        """Return logits and hidden states of each prompt's last token, and the layers of the prompts' cache."""
        device, length = self.model.device, self._length
        rows = [[self._pad_id] * start + list(prompt) for start, prompt in zip(starts, prompts, strict=True)]
        columns = torch.arange(length, device=device)[None]
        firsts = tensor_on(device, starts)[:, None]
        cache = prompt_cache(self.model.config)
        with self.autocast(), head_inputs(self.model.get_output_embeddings()) as inputs:
            logits = self.model(
                input_ids=tensor_on(device, rows),
                attention_mask=(columns >= firsts).long(),
                position_ids=(columns - firsts).clamp(min=0),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        return logits[:, -1], inputs[0][:, -1], cast("list[PromptLayer]", cache.layers)

    def _outputs(self, logits: Tensor, hidden: Tensor) -> DecodeStep:
        if self._heads is None:
            return DecodeStep(logits, None)
        with self.autocast():
            return DecodeStep(logits, *self._heads(hidden))


def _shape(bucket: Bucket) -> tuple[int, int]:
    return len(bucket.tokens), bucket.columns.shape[1]
