"""Keep the keys and values of an episode from one turn to the next, so that only what was added is read.

The loop names the prompts of a batch before it calls its sampler. A decoder of these prompts finds the states of each
one's earlier turns here, runs the model on the tokens behind them, and leaves its own states when it has finished. They
hold for one call of the sampler of episodes, during which the weights do not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore.types import Prompt
from rlcore_environments.turn_cache import PackedTurnDecoder, TurnCache
from rlcore_transformers.models.decoding.causal_decoder import CausalDecoder, keywords

States = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, float[heads, N, width], of N tokens."""
_present: ContextVar[KeptStates | None] = ContextVar("kept_states", default=None)


@attrs.frozen(eq=False)
class Kept:
    """The states of one episode.

    Attributes:
        tokens: N token ids that the model has read.
        states: their keys and values.
    """

    tokens: Sequence[int]
    states: States

    def common(self, tokens: Sequence[int]) -> int:
        """Return how many of the first tokens are the same, leaving one at least for the model to read."""
        most = min(len(self.tokens), len(tokens) - 1)
        return next((i for i in range(most) if self.tokens[i] != tokens[i]), most)


class KeptStates:
    """The states of the episodes that are played together."""

    def __init__(self) -> None:
        self._kept: dict[int, Kept] = {}
        self._caches: dict[int, TurnCache] = {}
        self._names: dict[int, int] = {}
        self._running: TurnDecoder | None = None

    @contextmanager
    def of(self, prompts: Mapping[int, Prompt]) -> Iterator[None]:
        """Let decoders made in the block use and leave states; `prompts` are named by the numbers of their episodes."""
        self._names = {id(prompt.tokens): number for number, prompt in prompts.items()}
        token = _present.set(self)
        try:
            yield
        finally:
            _present.reset(token)
            self._settle()

    def drop(self, number: int) -> None:
        """Forget the states of an episode that is over."""
        self._kept.pop(number, None)
        cache = self._caches.pop(number, None)
        if cache is not None:
            cache.drop(number)

    def decoder(self, request: DecoderRequest) -> TurnDecoder | PackedTurnDecoder | None:
        """Return a decoder that uses the states of its prompts; None if they are not named, or it can keep none."""
        self._settle()
        numbers = [self._names.get(id(prompt)) for prompt in request.prompts]
        named = [number for number in numbers if number is not None]
        if len(named) < len(numbers):
            return None
        if request.packs and request.device.type == "cpu" and request.speed.packed_decoding:
            return PackedTurnDecoder(request, named, self._caches)
        if not _counts_positions(request.model):
            return None
        decoder = TurnDecoder(request, [self._kept.pop(number, None) for number in named])
        if not decoder.keeps:
            return None
        decoder.leave = lambda row, kept: self._kept.__setitem__(named[row], kept)
        self._running = decoder
        return decoder

    def _settle(self) -> None:
        if self._running is not None:
            self._running.keep(torch.zeros(0, dtype=torch.long, device=self._running.device))
        self._running = None


def turn_decoder(request: DecoderRequest) -> TurnDecoder | PackedTurnDecoder | None:
    """Return a decoder that keeps states if the loop of episodes is sampling; else None."""
    kept = _present.get()
    return None if kept is None else kept.decoder(request)


class TurnDecoder(CausalDecoder):
    """Decodes the next turn of episodes from the states of their earlier turns.

    The cache has the kept states first, right-aligned, and behind them the tokens that follow, right-aligned too; the
    columns between are masked. Positions count real tokens.

    Args:
        request: the prompts, each the whole episode so far.
        kept: of each prompt, the states of its beginning; None for a first turn.
    """

    def __init__(self, request: DecoderRequest, kept: Sequence[Kept | None]) -> None:
        first = [0 if each is None else each.common(prompt) for each, prompt in zip(kept, request.prompts, strict=True)]
        suffixes = [tuple(prompt[size:]) for prompt, size in zip(request.prompts, first, strict=True)]
        self._before, most = max(first), max(len(suffix) for suffix in suffixes)
        super().__init__(
            request.model, suffixes if self._before else request.prompts,
            max_new_tokens=request.max_new_tokens + self._before, heads=request.read_heads, autocast=request.autocast,
            packs=request.packs and not self._before, speed=request.speed,
        )  # fmt: skip
        self.device = self._prompts.device
        self.keeps = len(self._layers) == len(self._cache.layers)
        self.leave: Callable[[int, Kept], None] = _forget
        self._rows = list(range(len(request.prompts)))
        self._read = [list(prompt) for prompt in request.prompts]
        self._written = torch.zeros(len(self._rows), request.max_new_tokens, dtype=torch.long, device=self.device)
        self._steps = 0
        if self._before and self.keeps:
            self._place(kept, first, suffixes, self._before + most)

    def _place(
        self, kept: Sequence[Kept | None], first: Sequence[int], suffixes: Sequence[Sequence[int]], length: int
    ) -> None:
        """Write the kept states into the cache, and set masks, positions and the tokens to read accordingly."""
        before, device = self._before, self.device
        capacity = self._mask.shape[1]
        sizes = torch.tensor(first, device=device)[:, None]
        starts = torch.tensor([[length - len(suffix)] for suffix in suffixes], device=device)
        columns = torch.arange(capacity, device=device)[None]
        is_kept = (columns >= before - sizes) & (columns < before)
        self._mask = (is_kept | (columns >= starts)).long()
        self._positions = torch.where(columns < before, columns - before + sizes, columns - starts + sizes).clamp(min=0)
        pad = int(self._prompts[0, 0])
        width = length - before
        rows = [[pad] * (width - len(suffix)) + list(suffix) for suffix in suffixes]
        self._prompts = torch.tensor(rows, device=device)
        self._copies, self._length = None, length
        self._padded = not bool(self._mask[:, :length].all())
        for i, layer in enumerate(self._layers):
            states = [None if each is None else each.states[i] for each in kept]
            some = next(each for each in states if each is not None)
            filled = [part.new_zeros(len(kept), part.shape[0], before, part.shape[2]) for part in some]
            for row, (each, size) in enumerate(zip(states, first, strict=True)):
                if each is not None and size:
                    for whole, part in zip(filled, each, strict=True):
                        whole[row, :, before - size :] = part[:, :size]
            layer.update(*filled)

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the tokens behind the kept states."""
        return self._forward(self._prompts, self._before) if self._before else super().start()

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        self._written[:, self._steps] = tokens
        self._steps += 1
        return super().step(tokens)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Leave the states of the sequences that are dropped, and keep those at `rows`, long[K], ascending."""
        going = set(rows.tolist())
        written = self._written[:, : self._steps].tolist()
        for place in range(len(self._rows)):
            if place not in going:
                self.leave(self._rows[place], self._kept(place, written[place]))
        self._rows = [self._rows[place] for place in rows.tolist()]
        self._read = [self._read[place] for place in rows.tolist()]
        if len(self._rows):
            self._written = self._written[rows]
            super().keep(rows)

    def _kept(self, place: int, written: list[int]) -> Kept:
        columns = self._mask[place, : self._length].nonzero()[:, 0]
        states = [(layer.keys[place][:, columns], layer.values[place][:, columns]) for layer in self._layers]
        return Kept([*self._read[place], *written], states)


def _counts_positions(model: Any) -> bool:
    """Return whether a model attends by positions and masks alone, so that masked columns between states are skipped.

    Windows of local attention that count columns (GPT-Neo) would count those too.
    """
    has_windows = getattr(model.config, "attention_types", None) is not None
    return not has_windows and keywords(model)[1]


def _forget(row: int, kept: Kept) -> None:
    """Leave the states of no row."""
