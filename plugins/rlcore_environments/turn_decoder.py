"""Decode the next turn of episodes in models whose attention may run packed, from a cache that stays in its place."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore_environments.turn_cache import TurnCache
from rlcore_transformers.models.decoding.cache import Prefill
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.speed.packing import pack


class PackedTurnDecoder:
    """Decodes the next turn of episodes without padding; only tokens behind the kept keys and values are read.

    No gradients are recorded, the model keeps its mode, and attention has no dropout.

    Args:
        request: the prompts, each the whole episode so far, and a model whose attention may run packed on a CPU.
        names: the episode of each prompt, by numbers.
        caches: the caches of episodes; those of these episodes are found and left there.
    """

    def __init__(self, request: DecoderRequest, names: Sequence[int], caches: MutableMapping[int, TurnCache]) -> None:
        self._request, self._names, self._caches = request, list(names), caches
        self._cache: TurnCache
        self._rows: Tensor

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the tokens behind the kept keys and values, or the whole prompts if there are none."""
        found = joined(self._caches, self._names, self._request.prompts)
        outputs = self._prefill() if found is None else None
        if found is not None:
            self._cache = found
        self._caches.update(dict.fromkeys(self._names, self._cache))
        self._rows = self._cache.begin(self._names)
        if outputs is not None:
            self._cache.reserve(self._request.max_new_tokens)
            return outputs
        suffixes: list[Sequence[int]] = [()] * len(self._names)
        for row, prompt in zip(self._rows.tolist(), self._request.prompts, strict=True):
            suffixes[row] = prompt[len(self._cache.read[row]) :]
        self._cache.reserve(max(len(suffix) for suffix in suffixes) + self._request.max_new_tokens)
        return self._read(suffixes)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        by_row = torch.empty_like(tokens).index_copy_(0, self._rows, tokens)
        return self._read(by_row[:, None].tolist())

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Continue the sequences at `rows`, long[K], ascending; the others stay in the cache for their next turn."""
        self._names = [self._names[row] for row in rows.tolist()]
        if self._names:
            self._rows = self._cache.bring(self._names)

    def _prefill(self) -> DecodeStep:
        """Run the distinct prompts, and make a cache of their keys and values."""
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(each) for each in self._request.prompts))}
        lengths = torch.tensor([len(prompt) for prompt in distinct])
        width = int(lengths.max())
        mask = torch.arange(width) < lengths[:, None]
        padded = torch.tensor([list(prompt) + [0] * (width - len(prompt)) for prompt in distinct])
        inputs, node = pack(padded, mask, share=True, speed=self._request.speed)
        prefill = Prefill(inputs["packing"])
        outputs = self._forward(inputs | {"packing": prefill}, node[lengths.cumsum(0) - 1])
        index = node[mask.reshape(-1).cumsum(0) - 1].view(mask.shape)  # any token will do behind a prompt
        states = [
            tuple(part[0].transpose(0, 1)[index].transpose(1, 2).float().contiguous() for part in layer)
            for layer in prefill.states
        ]
        copies = [distinct[tuple(prompt)] for prompt in self._request.prompts]
        self._cache = TurnCache([(k, v) for k, v in states], copies, self._names, self._request.prompts)
        return outputs.rows(torch.tensor(copies))

    def _read(self, tokens: Sequence[Sequence[int]]) -> DecodeStep:
        """Run the model on further tokens of each row of the cache."""
        ends = torch.tensor([len(each) for each in tokens]).cumsum(0) - 1
        return self._forward(self._cache.read_next(tokens), ends[self._rows])

    def _forward(self, inputs: dict[str, Any], rows: Tensor) -> DecodeStep:
        """Run the model; compute outputs at the indices `rows` of the packed sequence only."""
        model, heads = self._request.model, self._request.read_heads
        output = model.get_output_embeddings()
        with self._request.autocast(), head_reads(output, lambda hidden: hidden.index_select(1, rows)) as hidden:
            logits = model(**inputs).logits[0]
            return DecodeStep(logits, None) if heads is None else DecodeStep(logits, *heads(hidden[0][0]))


def joined(caches: Mapping[int, TurnCache], names: Sequence[int], prompts: Sequence[Sequence[int]]) -> TurnCache | None:
    """Return the cache in which all these episodes are, with what their prompts begin with; None if none is in any.

    If they are in several caches, or one of them in none, what they have read is copied to a new one.
    """
    found = [caches.get(name) for name in names]
    some = next((cache for cache in found if cache is not None), None)
    if some is None:
        return None
    given = list(zip(names, found, prompts, strict=True))
    common = [0 if cache is None else cache.common(name, prompt) for name, cache, prompt in given]
    if all(cache is some and some.begins_within(name, n) for (name, cache, _), n in zip(given, common, strict=True)):
        for name, count in zip(names, common, strict=True):
            some.shorten(name, count)
        return some
    nothing = some.states(names[found.index(some)], 0)
    states = [
        nothing if cache is None else cache.states(name, n) for (name, cache, _), n in zip(given, common, strict=True)
    ]
    for name, cache, _ in given:
        if cache is not None:
            cache.drop(name)
    return TurnCache.of(states, names, [prompt[:count] for prompt, count in zip(prompts, common, strict=True)])
