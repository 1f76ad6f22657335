"""Mixtures of streams: a source is drawn by weight for each row, and its next row is read when its step is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rlcore.errors import CheckpointError, DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.mixture_sources import Source
from rlcore_transformers.data.mixtures import ORIGINAL, check_weights, draw_sources, source_metrics, weights_of
from rlcore_transformers.data.streams import SampleStream, open_stream


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
        self._taken: list[tuple[Any, tuple[Any, str]]] = []
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

    def before_tokenising(self, index: int) -> tuple[Any, str]:
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

    def state_dict(self) -> dict[str, Any]:
        """Return how far each source has been read, the rows and steps so far, and the weights."""
        return {
            "position": self.position, "steps": self.steps, "seed": self._seed, "weights": weights_of(self._sources),
            "streams": [stream.state_dict() for stream in self._streams],
        }  # fmt: skip

    def load_state_dict(self, state: dict[str, Any]) -> None:
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
    sources: Sequence[Source], data: DataConfig, *, seed: int, read: Callable[[Sequence[Any], str], Sequence[Any]]
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


def _next_rows(stream: SampleStream, num: int, name: str) -> list[tuple[Any, tuple[Any, str]]]:
    rows: list[tuple[Any, tuple[Any, str]]] = []
    while len(rows) < num:
        indices = stream.take_within_pass(num - len(rows))
        rows += [(stream[index], (stream.before_tokenising(index)[0], name)) for index in indices]
    return rows
