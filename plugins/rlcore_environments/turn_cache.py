"""Keys and values of episodes that are played together, which stay where they are from turn to turn.

Each distinct prompt is stored once for all episodes that begin with it; what follows it has a row for each episode. The
rows of episodes that are being continued come first. An episode whose turn is over keeps its row: it trades places with
one that goes on, and nothing else is copied.

Shapes: R rows, of which the first K are being continued; D distinct prompts of up to P tokens; T columns behind them; S
new tokens of a row at most, N of all rows; G query heads that share a key head.

Also in this file: decode the next turn of episodes in models whose attention may run packed, from a cache that stays
in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore_transformers.models.decoding.cache import Prefill, States
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.speed.packing import pack

GROWTH = 1.5
"""By which factor rows grow at least when they are too short."""


class Reading(NamedTuple):
    """Where the N new tokens of a forward pass belong.

    Attributes:
        stored: long[N * groups], where the keys and values of each token and group belong among those of all rows.
        padded: long[K, S], the new tokens of each row; any token behind the last one.
        places: long[N], of each token in `padded`, row by row.
        hidden: float[K, 1, S, T], -inf at columns that a token does not attend to; None if it attends to all.
        width: T.
    """

    stored: Tensor
    padded: Tensor
    places: Tensor
    hidden: Tensor | None
    width: int


class TurnCache:
    """The cache and the attention function of a packed batch (`packing`) of episodes.

    Everything is in float32: many CPUs have slow matrix products in lower precision.

    Args:
        prompts: keys and values of the D prompts in each layer, float32[D, groups, P, width].
        copies: the prompt of each row.
        names: R episodes, by numbers.
        read: the tokens of each row, which are those of its prompt.
    """

    def __init__(
        self, prompts: list[States], copies: Sequence[int], names: Sequence[int], read: Sequence[Sequence[int]]
    ) -> None:
        self._prompts, self.calls, self.columns = prompts, [0], 0
        self._copies = torch.tensor(copies)
        self.read = [list(tokens) for tokens in read]
        self.begins = torch.tensor([len(tokens) for tokens in read])
        self._sizes = torch.zeros_like(self.begins)
        self._lengths = torch.zeros(len(prompts[0][0]), dtype=torch.long).index_copy_(0, self._copies, self.begins)
        self._set_outside()
        self._own = [(_empty(keys, len(copies)), _empty(values, len(copies))) for keys, values in prompts]
        self._names: list[int | None] = list(names)
        self._row = {name: row for row, name in enumerate(names)}
        self._reading: Reading
        self._front(len(names))

    @classmethod
    def of(cls, states: Sequence[list[States]], names: Sequence[int], read: Sequence[Sequence[int]]) -> TurnCache:
        """Return a cache of K episodes whose keys and values, float[groups, N, width], are in another one."""
        longest = max(len(tokens) for tokens in read)
        layers = [
            tuple(
                torch.stack([pad(each[layer][i], (0, 0, 0, longest - each[layer][i].shape[1])) for each in states])
                for i in range(2)
            )
            for layer in range(len(states[0]))
        ]
        return cls([(keys, values) for keys, values in layers], range(len(names)), names, read)

    def states(self, name: int, count: int) -> list[States]:
        """Return the keys and values of the first `count` tokens of an episode, float[groups, count, width]."""
        row = self._row[name]
        prompt, begin = int(self._copies[row]), int(self.begins[row])
        found = []
        for prompts, own in zip(self._prompts, self._own, strict=True):
            parts = (torch.cat([a[prompt, :, :begin], b[row]], 1)[:, :count] for a, b in zip(prompts, own, strict=True))
            found.append((next(parts), next(parts)))
        return found

    def common(self, name: int, tokens: Sequence[int]) -> int:
        """Return how many of the first tokens an episode has read, leaving one at least for the model to read."""
        read = self.read[self._row[name]]
        most = min(len(read), len(tokens) - 1)
        if read[:most] == list(tokens[:most]):
            return most
        return next(i for i in range(most) if read[i] != tokens[i])

    def begins_within(self, name: int, count: int) -> bool:
        """Return whether the prompt of an episode is among its first `count` tokens."""
        return int(self.begins[self._row[name]]) <= count

    def shorten(self, name: int, count: int) -> None:
        """Forget what an episode has read behind its first `count` tokens, which include its prompt."""
        row = self._row[name]
        del self.read[row][count:]
        self._sizes[row] = count - self.begins[row]

    def drop(self, name: int) -> None:
        """Forget an episode that is over."""
        self._names[self._row.pop(name)] = None

    def begin(self, names: Sequence[int]) -> Tensor:
        """Return the rows of the episodes that are continued next, long[K], and free room that is not used."""
        living = sorted(self._row.values())
        if 2 * len(living) <= len(self._names):
            self._reduce(living)
        return self.bring(names)

    def bring(self, names: Sequence[int]) -> Tensor:
        """Bring the rows of these episodes to the front, and return the row of each: long[K]."""
        rows = [self._row[name] for name in names]
        holes, movers = sorted(set(range(len(rows))).difference(rows)), [row for row in rows if row >= len(rows)]
        if movers:
            self._trade(holes, movers)
        self._front(len(rows))
        return torch.tensor([self._row[name] for name in names])

    def _trade(self, holes: list[int], movers: list[int]) -> None:
        to, of = torch.tensor(holes + movers), torch.tensor(movers + holes)
        used = int(self._sizes.max())
        for states in (part[:, :, :used] for layer in self._own for part in layer):
            states[to] = states[of]
        for numbers in (self._copies, self.begins, self._sizes):
            numbers[to] = numbers[of]
        for hole, mover in zip(holes, movers, strict=True):
            self.read[hole], self.read[mover] = self.read[mover], self.read[hole]
            self._names[hole], self._names[mover] = self._names[mover], self._names[hole]
        self._row = {name: row for row, name in enumerate(self._names) if name is not None}

    def _reduce(self, living: list[int]) -> None:
        rows = torch.tensor(living)
        left, self._copies = self._copies[rows].unique(return_inverse=True)
        self._prompts, self._lengths = (
            [(keys[left], values[left]) for keys, values in self._prompts],
            self._lengths[left],
        )
        self._set_outside()
        self._own = [(keys[rows], values[rows]) for keys, values in self._own]
        self.begins, self._sizes = self.begins[rows], self._sizes[rows]
        self.read, self._names = [self.read[row] for row in living], [self._names[row] for row in living]
        self._row = {name: row for row, name in enumerate(self._names) if name is not None}

    def _set_outside(self) -> None:
        """Hide the columns behind prompts; an empty one shows a column, and what is found there has no weight."""
        outside = torch.arange(self._prompts[0][0].shape[2]) >= self._lengths.clamp(min=1)[:, None]
        self._are_empty = int(self._lengths.min()) == 0
        self._outside = _minus_infinity(outside)[:, None, None] if outside.any() else None

    def _front(self, count: int) -> None:
        """Let the first rows be continued, and give each of them one of the S places of queries at its prompt."""
        copies = self._copies[:count]
        counts = torch.bincount(copies, minlength=len(self._prompts[0][0]))
        order = copies.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(count) - (counts.cumsum(0) - counts)[copies[order]]
        self._most = int(counts.max())
        self._slots: Tensor | None = copies * self._most + rank
        if len(counts) * self._most == count and torch.equal(self._slots, torch.arange(count)):
            self._slots = None

    def reserve(self, columns: int) -> None:
        """Make room for so many more columns in the rows that are continued."""
        needed = int(self._sizes.max()) + columns
        held = self._own[0][0].shape[2]
        if needed > held:
            more = max(needed, int(GROWTH * held)) - held
            self._own = [(pad(keys, (0, 0, 0, more)), pad(values, (0, 0, 0, more))) for keys, values in self._own]

    def read_next(self, tokens: Sequence[Sequence[int]]) -> dict[str, object]:
        """Prepare a forward pass on further tokens of the first K rows, and return the model's inputs."""
        counts = torch.tensor([len(each) for each in tokens])
        before, begins = self._sizes[: len(tokens)], self.begins[: len(tokens)]
        rows = torch.arange(len(tokens)).repeat_interleave(counts)
        firsts, most = counts.cumsum(0) - counts, int(counts.max())
        offsets = torch.arange(len(rows)) - firsts[rows]
        columns = before[rows] + offsets
        padded = (firsts[:, None] + torch.arange(most)).clamp(max=len(rows) - 1)
        width = int(columns.max()) + 1
        _, groups, room, _ = self._own[0][0].shape
        stored = (rows[:, None] * groups + torch.arange(groups)) * room + columns[:, None]
        self._reading = Reading(stored.view(-1), padded, rows * most + offsets, _hidden(before, most, width), width)
        self.columns = self._prompts[0][0].shape[2] + width
        for row, each in enumerate(tokens):
            self.read[row] += each
        self._sizes[: len(tokens)] += counts
        return {
            "input_ids": torch.tensor([[token for each in tokens for token in each]]),
            "position_ids": (begins[rows] + columns)[None],
            "attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.long),  # which keeps the model from building its own
            "packing": self,
            "use_cache": False,
        }

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  there is no dropout
        """Store keys and values, [1, groups, N, width], and attend: [1, heads, N, width] to [1, N, heads, width]."""
        layer, reading = (self.calls[0] - 1) % len(self._own), self._reading
        for states, new in zip(self._own[layer], (key, value), strict=True):
            tokens = new[0].transpose(0, 1).float().reshape(-1, new.shape[3])
            states.view(-1, new.shape[3]).index_copy_(0, reading.stored, tokens)
        height, most = reading.padded.shape
        heads, groups, width = query.shape[1], key.shape[1], query.shape[3]
        rows = query[0].transpose(0, 1).float()[reading.padded].view(height, most, groups, -1, width)
        queries = rows.permute(0, 2, 3, 1, 4).reshape(height, groups, -1, width)
        keys, values = (part[:height, :, : reading.width] for part in self._own[layer])
        hidden = (
            reading.hidden if most == 1 or reading.hidden is None else reading.hidden.repeat(1, 1, rows.shape[3], 1)
        )
        own, own_sums = _attend(queries, keys, values, hidden, scaling)
        prompt, prompt_sums = self._attend_to_prompts(layer, queries, scaling)
        share = torch.sigmoid(prompt_sums - own_sums)
        if self._are_empty:
            share = share * (self.begins[:height, None, None] > 0)
        mixed = torch.lerp(own, prompt, share[..., None]).view(height, groups, -1, most, width)
        found = mixed.permute(0, 3, 1, 2, 4).reshape(height * most, heads, width)
        return (found if most == 1 else found[reading.places]).to(query.dtype)[None]

    def _attend_to_prompts(self, layer: int, queries: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend to prompts only, float[K, groups, M, width] to the same shape, and return log-sum-exps of scores."""
        keys, values = self._prompts[layer]
        num, groups, _, width = keys.shape
        if self._slots is not None:
            slots = queries.new_zeros(num * self._most, *queries.shape[1:])
            queries = slots.index_copy_(0, self._slots, queries)
        stacked = queries.view(num, self._most, groups, -1, width).transpose(1, 2).reshape(num, groups, -1, width)
        mixed, sums = _attend(stacked, keys, values, self._outside, scaling)
        mixed = mixed.reshape(num, groups, self._most, -1, width).transpose(1, 2).flatten(0, 1)
        sums = sums.reshape(num, groups, self._most, -1).transpose(1, 2).flatten(0, 1)
        if self._slots is None:
            return mixed, sums
        return mixed.index_select(0, self._slots), sums.index_select(0, self._slots)


def _attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, scaling: float | None) -> tuple[Tensor, Tensor]:
    """Attend in float32; return the result and the log-sum-exp of each query's scores, float[B, groups, M].

    Args:
        q: float[B, groups, M, width].
        k: float[B, groups, T, width].
        v: float[B, groups, T, width].
        hidden: float[B, 1, M or 1, T], -inf at what is not attended to.
        scaling: of scores; the square root of 1 / width by default.
    """
    mask = None if hidden is None else hidden.expand(-1, q.shape[1], q.shape[2], -1)
    found: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  no public function of torch returns log-sum-exps
        q, k, v, attn_mask=mask, scale=scaling
    )
    return found


def _hidden(before: Tensor, most: int, width: int) -> Tensor | None:
    """Return -inf at columns behind each of the S new tokens of a row, float[K, 1, S, T]; None if there are none."""
    ends = before[:, None] + torch.arange(most)
    if int(ends.min()) == width - 1:
        return None
    later = torch.arange(width) > ends[:, :, None]
    return _minus_infinity(later)[:, None]


def _minus_infinity(where: Tensor) -> Tensor:
    return torch.zeros(where.shape).masked_fill_(where, float("-inf"))


def _empty(states: Tensor, rows: int) -> Tensor:
    return states.new_zeros(rows, states.shape[1], 0, states.shape[3])


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
