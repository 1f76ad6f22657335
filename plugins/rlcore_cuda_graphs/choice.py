"""Decide for each batch whether it is decoded in static tensors, and keep their buffers between batches."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlcore.logging import get_logger
from rlcore.protocols import Decoder
from rlcore_cuda_graphs.decoding import StaticDecoder
from rlcore_cuda_graphs.graphs import Graph, HostReads, make_cuda_graphs
from rlcore_cuda_graphs.steps import Autocast, ReadHeads, Workspace

STEPS = 4
"""Tokens that the check of a model decodes."""
ATTENTION = ("sdpa", "rlcore_packed", "eager")
"""Attention implementations that take a four-dimensional mask; without a packed batch, `rlcore_packed` is `sdpa`."""

MakeDecoder = Callable[..., Decoder]
"""Makes the decoder of a batch of prompts, with the arguments of `StaticDecoding.__call__`."""

log = get_logger("decoding")


class StaticDecoding:
    """Make static decoders for one policy, and keep their buffers and CUDA graphs between calls.

    Args:
        ordinary: makes the policy's own decoders. Static decoders are checked against these, and these decode what a
            static decoder cannot.
        pad_id: fills the left of shorter prompts; any id of the vocabulary will do.
        make_graphs: returns a factory of graphs; CUDA graphs on a GPU if left out.
    """

    def __init__(
        self, ordinary: MakeDecoder, *, pad_id: int = 0, make_graphs: Callable[[], Callable[[], Graph]] | None = None
    ) -> None:
        self._ordinary, self._pad_id, self._make_graphs = ordinary, pad_id, make_graphs
        self._known: tuple[Any, ...] = ()
        self._refusal: str | None = None
        self._logged: set[str] = set()
        self._workspace: Workspace | None = None
        self._holder: weakref.ref[StaticDecoder] | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None = None,
        autocast: Autocast = nullcontext,
        waiting: int = 0,
    ) -> Decoder:
        """Return a static decoder of `prompts`, or an ordinary one where the log says why."""
        capacity = max(len(prompt) for prompt in prompts) + max_new_tokens
        if self._takes(model, autocast, capacity):
            return StaticDecoder(
                model, prompts, max_new_tokens=max_new_tokens, lend=self._lend, heads=heads, pad_id=self._pad_id,
                autocast=autocast,
            )  # fmt: skip
        return self._ordinary(
            model, prompts, max_new_tokens=max_new_tokens, heads=heads, autocast=autocast, waiting=waiting
        )

    def release(self) -> None:
        """Free buffers and graphs; the next decoder makes new ones."""
        self._known, self._workspace, self._holder = (), None, None

    def _takes(self, model: PreTrainedModel, autocast: Autocast, capacity: int) -> bool:
        if model.training:
            return False
        known = fingerprint(model, autocast)
        if known != self._known:
            self.release()
            make_graph = self._graph_maker(model)
            self._known = known
            self._refusal = find_refusal(model, autocast, ordinary=self._ordinary, make_graph=make_graph)
            if self._refusal is None:
                self._workspace = Workspace(model, autocast, make_graph)
                self._logged.clear()
        refusal = self._refusal
        if refusal is None and not holds_everything(model, capacity):
            refusal = "its attention window is shorter than the sequences"
        if refusal is not None and refusal not in self._logged:
            self._logged.add(refusal)
            log.warning("static decoding disabled", model=type(model).__name__, reason=refusal)
        return refusal is None

    def _graph_maker(self, model: PreTrainedModel) -> Callable[[], Graph] | None:
        if self._make_graphs is not None:
            return self._make_graphs()
        return make_cuda_graphs() if model.device.type == "cuda" else None

    def _lend(self, decoder: StaticDecoder) -> Workspace:
        """Lend `decoder` the kept workspace, or a temporary one while another live decoder has the kept one."""
        holder = None if self._holder is None else self._holder()
        if self._workspace is None or (holder is not None and holder is not decoder):
            return Workspace(decoder.model, decoder.autocast)
        self._holder = weakref.ref(decoder)
        return self._workspace


def fingerprint(model: PreTrainedModel, autocast: Autocast) -> tuple[Any, ...]:
    """Return all that a graph of `model` depends on besides tensor contents: addresses, types, attention, precision."""
    tensors = (*model.parameters(), *model.buffers())
    attention = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    return id(model), attention, autocast, *((tensor.data_ptr(), tensor.dtype) for tensor in tensors)


def holds_everything(model: PreTrainedModel, capacity: int) -> bool:
    """Return whether every layer's cache holds keys and values of all of `capacity` tokens."""
    return all(
        type(layer) is DynamicLayer or (type(layer) is DynamicSlidingWindowLayer and layer.sliding_window > capacity)
        for layer in DynamicCache(config=model.config).layers
    )


def find_refusal(
    model: PreTrainedModel,
    autocast: Autocast,
    *,
    ordinary: MakeDecoder,
    make_graph: Callable[[], Graph] | None = None,
) -> str | None:
    """Return why `model` cannot be decoded in static tensors, None if it can.

    The model decodes a small batch and must give the logits of the ordinary decoder: once without a graph, and once
    with one if graphs are to be used.
    """
    attention = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    if attention not in ATTENTION:
        return f"attention {attention!r} takes masks of another form"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "its parameters lie on more than one device"
    if not holds_everything(model, 1):
        return "its cache holds something else than keys and values of all tokens"
    try:
        return _check(model, autocast, ordinary, make_graph)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _check(
    model: PreTrainedModel, autocast: Autocast, ordinary: MakeDecoder, make_graph: Callable[[], Graph] | None
) -> str | None:
    """Compare the logits of static decoders on a few tokens with those of an ordinary one; return what is wrong."""
    vocabulary = _vocabulary_size(model)
    prompts = [[token % vocabulary for token in prompt] for prompt in ([1, 2, 3], [5])]
    expected = _logits(ordinary(model, prompts, max_new_tokens=STEPS, heads=None, autocast=autocast), model)
    bound = _tolerance(model, autocast) * expected.abs().max()
    for maker in dict.fromkeys((None, make_graph)):
        workspace, reads = Workspace(model, autocast, maker), HostReads()
        decoder = StaticDecoder(model, prompts, max_new_tokens=STEPS, lend=workspace.lend, autocast=autocast)
        logits = _logits(decoder, model, nullcontext() if maker else reads)
        if reads.names:
            return f"it reads numbers back from the device while it computes ({reads.names[0]})"
        if workspace.failure is not None:
            return f"a step of it cannot be captured: {workspace.failure}"
        if not bool((logits - expected).abs().max() <= bound):
            return f"its logits differ from the ordinary decoder's{' when a graph is replayed' if maker else ''}"
    return None


def _logits(decoder: Decoder, model: PreTrainedModel, watch: AbstractContextManager[Any] | None = None) -> Tensor:
    """Return the logits of a few steps, of two sequences and then of the second alone."""
    logits, rows = [decoder.start().logits], torch.arange(2, device=model.device)
    for at in range(STEPS):
        if at == STEPS // 2:
            rows = rows[1:]
            decoder.keep(rows)
        with watch or nullcontext():
            logits.append(decoder.step((rows * 5 + at * 3 + 2) % _vocabulary_size(model)).logits)
    return torch.cat(logits).float()


def _vocabulary_size(model: PreTrainedModel) -> int:
    weight: Any = model.get_input_embeddings().weight
    return int(weight.shape[0])


def _tolerance(model: PreTrainedModel, autocast: Autocast) -> float:
    """Return how far logits may differ, relative to the largest, if only the order of sums differs."""
    with autocast():
        is_low = model.dtype != torch.float32 or torch.is_autocast_enabled(model.device.type)
    return 0.05 if is_low or torch.get_float32_matmul_precision() != "highest" else 1e-4
