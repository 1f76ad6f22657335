"""Continue prompts in tensors of fixed shapes and places, so that a step can be recorded once and replayed by a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.models.decoding.cache import PreallocatedLayer, make_cache
from rlcore.models.decoding.causal import ReadHeads
from rlcore.models.head_input import head_reads
from rlcore.protocols import DecodeStep
from rlcore.types import tensor_on
from rlcore_cuda_graphs.cache import Bucket, LayerShape, bucket_size
from rlcore_cuda_graphs.steps import Autocast, Step, Workspace

LEAST_COLUMNS = 64
"""Room for tokens comes in multiples of this."""

Lend = Callable[["StaticDecoder"], Workspace]
"""Hands out the buffers a decoder works in, from its start to its end."""


class StaticDecoder:
    """Read prompts of different lengths together, then one token of each at a time, like `CausalDecoder`.

    The batch is rounded up to a bucket of rows and of columns; rows without a sequence are read too, and what is said
    of them is thrown away. All that a step reads (tokens, places, the cache) lies in tensors that keep their addresses,
    and nothing it does depends on a number of Python, so a recording of it may stand for it.

    Args:
        model: an `AutoModelForCausalLM` in evaluation mode.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called.
        lend: gives the workspace.
        heads: what is said besides logits; they are run after the step, not in the recording.
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
        self._step: Step

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the prompts, each of them once however often it occurs."""
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(self._prompts))}
        starts = [self._length - len(prompt) for prompt in distinct]
        logits, hidden, layers = self._read_prompts(list(distinct), starts)
        device = self.model.device
        copies = [distinct[prompt] for prompt in self._prompts]
        index = tensor_on(device, copies)
        self._shapes = [LayerShape.of(layer) for layer in layers]
        self._workspace = self._lend(self)
        rows, columns = bucket_size(self._rows, 1), bucket_size(self._end, LEAST_COLUMNS)
        self._step = self._workspace.step(self._shapes, rows, columns)
        bucket = self._step.bucket
        bucket.column.fill_(self._length)
        bucket.starts.zero_()
        bucket.starts[: self._rows] = tensor_on(device, [[starts[i]] for i in copies])
        for layer, read in zip(bucket.layers, layers, strict=True):
            for buffer, held in ((layer.keys, read.keys), (layer.values, read.values)):
                # What an earlier call left is masked, but a weight of 0 does not hide what is not a number.
                buffer.zero_()
                buffer[: self._rows, :, : self._length] = held.index_select(0, index)
        return self._said(logits[index], hidden[index])

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B].

        Raises:
            ModelError: it is called more than `max_new_tokens` times.
        """
        if self._length >= self._end:
            raise ModelError(f"a decoder with room for {self._end} tokens was told to read one more")
        bucket = self._step.bucket
        bucket.tokens[: self._rows] = tokens[:, None]
        outputs = self._step.run()
        self._length += 1
        bucket.column.add_(1)
        # The next run writes over what this one returned.
        logits, hidden = (array[: self._rows].clone() for array in outputs)
        return self._said(logits, hidden)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only, in a smaller bucket if it is half as large."""
        bucket, self._rows = self._step.bucket, len(rows)
        bucket.starts[: self._rows] = bucket.starts[rows]
        for layer in bucket.layers:
            for buffer in (layer.keys, layer.values):
                buffer[: self._rows, :, : self._length] = buffer[:, :, : self._length].index_select(0, rows)
        smaller, (now, columns) = bucket_size(self._rows, 1), _shape(bucket)
        if 2 * smaller <= now:
            self._step = self._workspace.step(self._shapes, smaller, columns)

    def _read_prompts(
        self, prompts: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Sequence[PreallocatedLayer]]:
        """Return what is said after each prompt, and the layers of a cache that holds them."""
        device, length = self.model.device, self._length
        rows = [[self._pad_id] * start + list(prompt) for start, prompt in zip(starts, prompts, strict=True)]
        columns = torch.arange(length, device=device)[None]
        firsts = tensor_on(device, starts)[:, None]
        cache = make_cache(self.model.config, length)
        with self.autocast(), head_reads(self.model.get_output_embeddings()) as inputs:
            logits = self.model(
                input_ids=tensor_on(device, rows),
                attention_mask=(columns >= firsts).long(),
                position_ids=(columns - firsts).clamp(min=0),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        return logits[:, -1], inputs[0][:, -1], cast("list[PreallocatedLayer]", cache.layers)

    def _said(self, logits: Tensor, hidden: Tensor) -> DecodeStep:
        if self._heads is None:
            return DecodeStep(logits, None)
        with self.autocast():
            return DecodeStep(logits, *self._heads(hidden))


def _shape(bucket: Bucket) -> tuple[int, int]:
    return len(bucket.tokens), bucket.columns.shape[1]
