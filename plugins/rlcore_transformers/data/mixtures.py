"""Mixtures of sources in memory: rows of several sources, and an order that takes them by weights.

Also in this file: mixtures of streams: a source is drawn by weight for each row, and its next row is read when its
step is due.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, TypeVar

import attrs
import numpy as np

from rlcore.errors import CheckpointError, DataError
from rlcore.safe_text import shorten
from rlcore.sampling import hash_positions
from rlcore.settings import DataConfig
from rlcore.training import Order, OrderedRows
from rlcore.types import Prompt, State, sequences_of
from rlcore_transformers.data.sources import Source, load_part, parse_mixture
from rlcore_transformers.data.streams import SampleStream, open_stream

ORIGINAL = (
    "resume with the original sources, weights and options of data, or start a new run from the checkpoint's model "
    "folder"
)
"""End of the errors about checkpoints."""
ORDER, VERSION = "weighted", 1
"""The order of a mixture with weights, and its version, in a checkpoint; a new version takes other rows."""
_Build = TypeVar("_Build", bound=Callable[..., Any])


def mixing(build: _Build) -> _Build:
    """Let a pipeline read mixtures: it builds the rows of each source, which `MixedRows` then holds.

    Args:
        build: a function with the arguments of `rlcore.protocols.SamplePipeline` or `PromptPipeline`.
    """

    @functools.wraps(build)
    def build_mixed(source: object, tokenizer: object, data: DataConfig, *, max_length: int, what: str = "") -> object:
        named = {"what": what} if what else {}
        sources = parse_mixture(source, what or "samples")
        if sources is None:
            return build(source, tokenizer, data, max_length=max_length, **named)
        parts = [
            build(load_part(each, data.columns), tokenizer, data, max_length=max_length, what=each.what)
            for each in sources
        ]
        return MixedRows(parts, sources)

    return build_mixed  # type: ignore[return-value]


class MixedRows(OrderedRows):
    """Tokenised rows of several sources, taken by weight.

    Prompts of the sources alternate, so that the first ones, which are evaluated by default, are of every source; they
    have the columns of all sources. Rows of other forms lie source by source.

    Args:
        parts: the rows of each source.
        sources: the sources.
    """

    def __init__(self, parts: Sequence[Sequence[Any]], sources: Sequence[Source]) -> None:
        self.sources = sources
        if any(isinstance(row, Prompt) for part in parts for row in part):
            marked = list(zip_longest(*_of_one_form(parts, sources)))
            pairs = [(row, i) for rows in marked for i, row in enumerate(rows) if row is not None]
        else:
            pairs = [(row, i) for i, part in enumerate(parts) for row in part]
        super().__init__(row for row, _ in pairs)
        self._members = [i for _, i in pairs]

    def parts(self) -> dict[str, Sequence[Any]]:
        """Return the rows of each source by its name."""
        return {
            source.name: [row for row, member in zip(self, self._members, strict=True) if member == i]
            for i, source in enumerate(self.sources)
        }

    def order(self, rows: Sequence[object], seed: int) -> MixedOrder:
        """Return the order of these rows, or of rows that have their samples.

        Raises:
            DataError: no row of a source is left.
        """
        return MixedOrder(self.members(rows), self.sources, seed)

    def members(self, rows: Sequence[object]) -> list[int]:
        """Return the number of the source of each row."""
        if rows is self:
            return self._members
        pairs = zip(self, self._members, strict=True)
        known = {id(sample): member for row, member in pairs for sample in sequences_of(row)}
        return [known[id(sequences_of(row)[0])] for row in rows]


def indices_by_source(rows: Sequence[object], *, of: Sequence[object]) -> dict[str, list[int]]:
    """Return the indices of rows by the name of their source; sources without rows are left out.

    Args:
        rows: rows, such as those that a trainer can evaluate.
        of: what the pipeline returned, from which the rows were made; if it is no mixture, the only name is empty.
    """
    if not isinstance(of, MixedRows):
        return {"": list(range(len(rows)))}
    found: dict[str, list[int]] = {}
    for index, member in enumerate(of.members(rows)):
        found.setdefault(of.sources[member].name, []).append(index)
    return found


def _of_one_form(parts: Sequence[Sequence[Prompt]], sources: Sequence[Source]) -> list[list[Prompt]]:
    names = dict.fromkeys(name for part in parts for prompt in part for name in prompt.columns)
    return [
        [
            attrs.evolve(prompt, columns={name: prompt.columns.get(name) for name in names}, source=source.name)
            for prompt in part
        ]
        for part, source in zip(parts, sources, strict=True)
    ]


class MixedOrder(Order):
    """Takes each row from a source drawn by weight, and the rows of a source shuffled anew in each pass over it.

    A pass has as many rows as the sources together; small sources with a large weight come several times in it. Draw
    number n is a hash of the seed and n, so that the order depends on nothing else. Without weights the rows of all
    sources are shuffled together, and each comes once in a pass. A step is a call of `take`.

    Args:
        members: number of the source of each row.
        sources: the sources.
        seed: seed of the draws and shuffles.

    Raises:
        DataError: no row has a source that has a weight.
    """

    def __init__(self, members: Sequence[int], sources: Sequence[Source], seed: int) -> None:
        super().__init__(len(members), seed)
        self._members, self._sources = members, sources
        self._rows = [[k for k, member in enumerate(members) if member == i] for i in range(len(sources))]
        for rows, source in zip(self._rows, sources, strict=True):
            if not rows:
                raise DataError(f"{source.what}: no row of {shorten(source.path)} is left to learn from")
        self._orders = [Order(len(rows), seed + 7919 * (i + 1)) for i, rows in enumerate(self._rows)]
        self.steps, self._counts = 0, Counter[int]()

    def __copy__(self) -> MixedOrder:
        """Return an order that goes on from here by itself."""
        copied = MixedOrder(self._members, self._sources, self.seed)
        copied.load_state_dict(self.state_dict())
        return copied

    def take(self, num: int) -> list[int]:
        """Return the next `num` indices."""
        if not all(source.weights for source in self._sources):
            indices = super().take(num)
        else:
            drawn = draw_sources(self._sources, self.seed, self.position, num, self.steps)
            rows = [iter(order.take(drawn.count(i))) for i, order in enumerate(self._orders)]
            indices = [self._rows[i][next(rows[i])] for i in drawn]
            self.position += num
        self.steps += 1
        self._counts.update(self._members[index] for index in indices)
        return indices

    def metrics(self) -> dict[str, float]:
        """Return each source's share of the rows taken since the last call, and the passes over each, if weighed."""
        counts, self._counts = self._counts, Counter()
        passes = [order.epoch for order in self._orders] if self._sources[0].weights else []
        return source_metrics(self._sources, counts, passes)

    def state_dict(self) -> State:
        """Return the position, the steps, the weights, and the position in each source and the number of its rows.

        With weights, also the name and the version of the order, so that no other order continues.
        """
        weights = weights_of(self._sources)
        return {
            **super().state_dict(), "steps": self.steps, "weights": weights,
            **({"order": ORDER, "version": VERSION} if any(weights.values()) else {}),
            "positions": [order.position for order in self._orders], "counts": [order.count for order in self._orders],
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Continue at the saved position.

        Raises:
            CheckpointError: the sources, their weights, the numbers of their rows or the version of the order are
                others than before, or the rows were streamed.
        """
        check_weights(state, self._sources)
        if "positions" not in state:
            raise CheckpointError(
                "the checkpoint was written by a run that streamed the mixture, and now its rows are read at once: "
                f"{ORIGINAL}"
            )
        counts = [order.count for order in self._orders]
        if (before := state.get("counts", counts)) != counts:
            names = [source.name for source in self._sources]
            then, now = (dict(zip(names, each, strict=True)) for each in (before, counts))
            raise CheckpointError(
                f"the checkpoint was written with the rows {then} of the sources, now there are {now}: {ORIGINAL}"
            )
        if (version := state.get("version", VERSION)) != VERSION:
            raise CheckpointError(
                f"the checkpoint was written by version {version} of the order of mixtures, and this is version "
                f"{VERSION}: resume with the rlcore-transformers that wrote it, or start a new run from the "
                "checkpoint's model folder"
            )
        super().load_state_dict({key: state[key] for key in ("position", "seed")} | {"count": self.count})
        self.steps = state["steps"]
        for i, (order, position) in enumerate(zip(self._orders, state["positions"], strict=True)):
            order.load_state_dict({"position": position, "count": order.count, "seed": self.seed + 7919 * (i + 1)})


def draw_sources(sources: Sequence[Source], seed: int, position: int, num: int, step: int) -> list[int]:
    """Return the number of the source of each of `num` rows from `position` on, drawn by the weights at a step."""
    weights = np.cumsum([source.weight_at(step) for source in sources])
    numbers = np.arange(position, position + num, dtype=np.uint64)
    hashed = hash_positions(np.array([seed * 1_000_003 + 17], dtype=np.uint64), numbers)
    uniforms = (hashed >> np.uint64(11)) * 2.0**-53
    drawn: list[int] = np.searchsorted(weights, uniforms * weights[-1], side="right").tolist()
    return drawn


def source_metrics(sources: Sequence[Source], counts: Mapping[int, int], passes: Sequence[float]) -> dict[str, float]:
    """Return the metrics of a step: `data/share/NAME` of each source, and `data/epoch/NAME`; none without rows."""
    total = sum(counts.values())
    shares = {f"data/share/{source.name}": counts.get(i, 0) / total for i, source in enumerate(sources) if total}
    ends: Iterable[tuple[Source, float]] = zip(sources, passes, strict=False) if total else ()
    return shares | {f"data/epoch/{source.name}": passed for source, passed in ends}


def check_weights(state: Mapping[str, object], sources: Sequence[Source]) -> None:
    """Check that a checkpoint's mixture has these sources and weights.

    Raises:
        CheckpointError: it has others, or was written without a mixture.
    """
    before, now = state.get("weights"), weights_of(sources)
    if before != now:
        was = "without a mixture" if before is None else f"with the mixture {before}"
        raise CheckpointError(f"the checkpoint was written {was}, now it is {now}: {ORIGINAL}")


def weights_of(sources: Sequence[Source]) -> dict[str, list[list[float]]]:
    """Return the name of each source, and its weights by step, as plain values."""
    return {source.name: [[float(step), weight] for step, weight in source.weights] for source in sources}


class MixedStream:
    """Streams of several sources as one (`rlcore.protocols.RowStream`).

    Row number n is of the source that `MixedOrder` takes in its place, since both draw it from the seed and n; each
    source is read from its beginning again once it ends.

    Args:
        streams: the stream of each source.
        sources: the sources, which have weights.
        seed: seed of the draws.
    """

    def __init__(self, streams: Sequence[SampleStream], sources: Sequence[Source], seed: int) -> None:
        self._streams, self._sources, self._seed = streams, sources, seed
        self.position, self.steps = 0, 0
        self._taken: list[tuple[object, tuple[object, str]]] = []
        self._counts = Counter[int]()

    @property
    def is_usable(self) -> Callable[[Any], bool]:
        """Returns whether a row is trained on; others are left out."""
        return self._streams[0].is_usable

    @is_usable.setter
    def is_usable(self, is_usable: Callable[[Any], bool]) -> None:
        for stream in self._streams:
            stream.is_usable = is_usable

    def __getitem__(self, index: int) -> Any:
        """Return a row that was taken last, by the index that `take_within_pass` returned."""
        return self._taken[index - self.position + len(self._taken)][0]

    def before_tokenising(self, index: int) -> tuple[object, str]:
        """Return what a row that was taken last was made of, and the name of its source, by the row's index."""
        return self._taken[index - self.position + len(self._taken)][1]

    @property
    def epoch(self) -> float:
        """Return the number of whole passes over the source with the fewest."""
        return min(stream.epoch for stream in self._streams)

    def num_batches(self, size: int) -> int | None:  # noqa: ARG002  as `Order.num_batches`
        """Return None: the length of a pass is unknown."""
        return None

    def take_within_pass(self, num: int) -> list[int]:
        """Read and tokenise the next `num` usable rows, and return their indices.

        Raises:
            DataError: a row cannot be read or tokenised, or a whole pass over a source has no usable row.
        """
        drawn = draw_sources(self._sources, self._seed, self.position, num, self.steps)
        rows = [
            iter(_next_rows(stream, drawn.count(i), source.name))
            for i, (stream, source) in enumerate(zip(self._streams, self._sources, strict=True))
        ]
        self._taken = [next(rows[i]) for i in drawn]
        self._counts.update(drawn)
        self.position, self.steps = self.position + num, self.steps + 1
        return list(range(self.position - num, self.position))

    def metrics(self) -> dict[str, float]:
        """Return each source's share of the rows taken since the last call, and the whole passes over each."""
        counts, self._counts = self._counts, Counter()
        return source_metrics(self._sources, counts, [stream.epoch for stream in self._streams])

    def head(self) -> Sequence[Any]:
        """Return the first rows of each source, tokenised."""
        return [row for stream in self._streams for row in stream.head()]

    def state_dict(self) -> State:
        """Return how far each source has been read, the rows and steps so far, and the weights."""
        return {
            "position": self.position, "steps": self.steps, "seed": self._seed, "weights": weights_of(self._sources),
            "streams": [stream.state_dict() for stream in self._streams],
        }  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        """Continue after the row that was read last.

        Raises:
            CheckpointError: the sources or weights are others than before, or the rows were not streamed.
        """
        check_weights(state, self._sources)
        if "streams" not in state:
            raise CheckpointError(
                "the checkpoint was written by a run that read all rows of the mixture at once, and now they are "
                f"streamed: {ORIGINAL}"
            )
        self.position, self.steps, self._seed = state["position"], state["steps"], state["seed"]
        for stream, own in zip(self._streams, state["streams"], strict=True):
            stream.load_state_dict(own)


def open_mixed_stream(
    sources: Sequence[Source], data: DataConfig, *, seed: int, read: Callable[[Sequence[Any], str], Sequence[object]]
) -> MixedStream:
    """Return the stream of a mixture, whose sources can be streamed one by one.

    Raises:
        DataError: a source cannot be streamed, or has no weight.
    """
    for source in sources:
        if not source.weights:
            raise DataError(
                f"{source.what}: has no weight, and the size of a stream is unknown; give each source a weight, or "
                "leave data.streaming out"
            )
    streams = []
    for i, source in enumerate(sources):
        rows = open_stream(source.path, data, seed=seed + 7919 * (i + 1), limit=source.limit, what=source.what)
        if rows is None:
            raise DataError(
                f"{source.what}: is read whole, and other sources are streams; set data.streaming to stream all of them"
            )
        streams.append(SampleStream(rows, read, source.what, source.expected_columns(data.columns)))
    return MixedStream(streams, sources, seed)


def _next_rows(stream: SampleStream, num: int, name: str) -> list[tuple[object, tuple[object, str]]]:
    rows: list[tuple[object, tuple[object, str]]] = []
    while len(rows) < num:
        indices = stream.take_within_pass(num - len(rows))
        rows += [(stream[index], (stream.before_tokenising(index)[0], name)) for index in indices]
    return rows
