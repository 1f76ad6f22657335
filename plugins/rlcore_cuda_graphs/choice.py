"""Decide whether a batch is decoded in static tensors: where a GPU gains by it, and where the model proves it exact."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.logging import get_logger
from rlcore.models.decoding.cache import PreallocatedLayer, make_cache
from rlcore.models.decoding.causal import CausalDecoder, ReadHeads
from rlcore.models.freezing import vocabulary_size
from rlcore.models.speed.packing import PACKED
from rlcore.protocols import Decoder
from rlcore_cuda_graphs.decoding import StaticDecoder
from rlcore_cuda_graphs.graphs import Graph, HostReads, make_cuda_graphs
from rlcore_cuda_graphs.steps import Autocast, Workspace

STEPS = 4
"""Tokens that a model proves itself on."""

log = get_logger("decoding")


class StaticDecoding:
    """Make a model's static decoders, where they are exact, and keep their buffers and recordings between calls.

    Args:
        everywhere: on other devices than GPUs too, where nothing is recorded.
        make_graphs: returns what makes a recording; CUDA graphs on a GPU if left out.
    """

    def __init__(
        self, *, everywhere: bool = False, make_graphs: Callable[[], Callable[[], Graph]] | None = None
    ) -> None:
        self._everywhere, self._make_graphs = everywhere, make_graphs
        self._known: tuple[Any, ...] = ()
        self._refusal: str | None = None
        self._said: set[str] = set()
        self._workspace: Workspace | None = None
        self._holder: weakref.ref[StaticDecoder] | None = None

    def decoder(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None,
        pad_id: int,
        autocast: Autocast,
    ) -> StaticDecoder | None:
        """Begin to continue `prompts`; None where that is for another decoder to do, and the log says why."""
        capacity = max(len(prompt) for prompt in prompts) + max_new_tokens
        if not self._takes(model, autocast, capacity):
            return None
        return StaticDecoder(
            model, prompts, max_new_tokens=max_new_tokens, lend=self._lend, heads=heads, pad_id=pad_id,
            autocast=autocast,
        )  # fmt: skip

    def release(self) -> None:
        """Let go of buffers and recordings; the next decoder makes new ones."""
        self._known, self._workspace, self._holder = (), None, None

    def _takes(self, model: PreTrainedModel, autocast: Autocast, capacity: int) -> bool:
        if model.training or not (self._everywhere or model.device.type == "cuda"):
            return False
        known = fingerprint(model, autocast)
        if known != self._known:
            self.release()
            make_graph = self._graph_maker(model)
            self._known, self._refusal = known, find_refusal(model, autocast, make_graph)
            if self._refusal is None:
                self._workspace = Workspace(model, autocast, make_graph)
                self._said.clear()
        refusal = self._refusal
        if refusal is None and not holds_everything(model, capacity):
            refusal = "it has a window shorter than the sequences"
        if refusal is not None and refusal not in self._said:
            self._said.add(refusal)
            say = log.warning if self._everywhere else log.info
            say("decoding is not static", model=type(model).__name__, reason=refusal)
        return refusal is None

    def _graph_maker(self, model: PreTrainedModel) -> Callable[[], Graph] | None:
        if self._make_graphs is not None:
            return self._make_graphs()
        return make_cuda_graphs() if model.device.type == "cuda" else None

    def _lend(self, decoder: StaticDecoder) -> Workspace:
        """Give `decoder` what is kept, or, while another decoder lives that has it, something of its own."""
        holder = None if self._holder is None else self._holder()
        if self._workspace is None or (holder is not None and holder is not decoder):
            return Workspace(decoder.model, decoder.autocast)
        self._holder = weakref.ref(decoder)
        return self._workspace


def fingerprint(model: PreTrainedModel, autocast: Autocast) -> tuple[Any, ...]:
    """Tell what a recording of `model` depends on besides what its tensors hold: where they lie, and how it runs."""
    tensors = (*model.parameters(), *model.buffers())
    attention = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    return id(model), attention, autocast, *((tensor.data_ptr(), tensor.dtype) for tensor in tensors)


def holds_everything(model: PreTrainedModel, capacity: int) -> bool:
    """Tell whether every layer's cache is of keys and values of all of `capacity` tokens."""
    return all(isinstance(layer, PreallocatedLayer) for layer in make_cache(model.config, capacity).layers)


def find_refusal(
    model: PreTrainedModel, autocast: Autocast, make_graph: Callable[[], Graph] | None = None
) -> str | None:
    """Return why `model` cannot be decoded in static tensors, None if it can.

    The model proves it on a small batch, and the recording, if there is to be one, proves it once more.
    """
    attention = model.config._attn_implementation  # noqa: SLF001  transformers has no other way to ask
    if attention not in ("sdpa", PACKED, "eager"):
        return f"attention {attention!r} takes masks of a form of its own"
    if len({parameter.device for parameter in model.parameters()}) > 1:
        return "it lies on more than one device"
    if not holds_everything(model, 1):
        return "it remembers something else than keys and values of all tokens"
    try:
        return _prove(model, autocast, make_graph)
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _prove(model: PreTrainedModel, autocast: Autocast, make_graph: Callable[[], Graph] | None) -> str | None:
    """Hold what static decoders say of a few tokens against what an ordinary one says; return what is wrong."""
    vocabulary = vocabulary_size(model)
    prompts = [[token % vocabulary for token in prompt] for prompt in ([1, 2, 3], [5])]
    expected = _say(CausalDecoder(model, prompts, max_new_tokens=STEPS, autocast=autocast), model, nullcontext())
    bound = _tolerance(model, autocast) * expected.abs().max()
    for maker in dict.fromkeys((None, make_graph)):
        workspace, reads = Workspace(model, autocast, maker), HostReads()
        decoder = StaticDecoder(model, prompts, max_new_tokens=STEPS, lend=workspace.lend, autocast=autocast)
        said = _say(decoder, model, nullcontext() if maker else reads)
        if reads.names:
            return f"it reads numbers back from the device while it computes ({reads.names[0]})"
        if workspace.failure is not None:
            return f"a step of it cannot be recorded: {workspace.failure}"
        if not bool((said - expected).abs().max() <= bound):
            return f"it says something else{' when replayed' if maker else ''} than with a cache that grows"
    return None


def _say(decoder: Decoder, model: PreTrainedModel, watch: AbstractContextManager[Any]) -> Tensor:
    """Return the logits of a few steps, of two sequences and then of the second alone."""
    logits, rows = [decoder.start().logits], torch.arange(2, device=model.device)
    for at in range(STEPS):
        if at == STEPS // 2:
            rows = rows[1:]
            decoder.keep(rows)
        with watch:
            logits.append(decoder.step((rows * 5 + at * 3 + 2) % vocabulary_size(model)).logits)
    return torch.cat(logits).float()


def _tolerance(model: PreTrainedModel, autocast: Autocast) -> float:
    """Tell how far logits may lie apart, as a part of the largest, if only the order of sums differs."""
    with autocast():
        is_narrow = model.dtype != torch.float32 or torch.is_autocast_enabled(model.device.type)
    return 0.05 if is_narrow or torch.get_float32_matmul_precision() != "highest" else 1e-4
