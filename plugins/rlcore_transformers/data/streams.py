"""Training rows that are read and tokenised while a run trains, from an iterable data set of the `datasets` library."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore.config.yaml_files import existing_path
from rlcore.data.text import count_truncated, warn_of_counts
from rlcore.data.user_code import load_reference
from rlcore.errors import CheckpointError, DataError, RLCoreError
from rlcore.safe_text import shorten
from rlcore_transformers.data.files import (
    DAMAGED,
    READERS,
    check_compression,
    files_in,
    guard_datasets,
    is_pattern,
    is_stream,
    iterate_file,
    matching_files,
    parse_hub_name,
    type_of,
)
from rlcore_transformers.data.sources import file_names, is_saved, rename

if TYPE_CHECKING:
    from rlcore.settings import DataConfig
    from rlcore.types import State

HEAD = 16
"""Number of rows at the beginning of a stream by which a run recognises it when it is resumed."""


class SampleStream:
    """Training rows and their order: each is tokenised when its step is due, and dropped after it.

    Rows come in the order of the data set. After the last one the next pass begins, for which the data set's epoch is
    set, so that a shuffled one is shuffled again. A resumed run reads the rows before its own again, without tokenising
    them; all ranks read the same rows.

    Args:
        rows: a `datasets.IterableDataset`, which yields the same rows each time it is iterated in the same epoch.
        tokenise: called with some rows and their name in errors; returns one tokenised row for each.
        what: the option that holds the data set, for errors.
        names: columns to rename in each row, their name: ours.
    """

    def __init__(
        self,
        rows: Any,
        tokenise: Callable[[list[Any], str], Sequence[Any]],
        what: str = "samples",
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.rows, self.tokenise, self.what, self._names = rows, tokenise, what, names or {}
        self.is_usable: Callable[[Any], bool] = lambda _: True
        self.position, self.passes, self.num_read, self.begun_at = 0, 0, 0, 0
        self._iterator: Iterator[object] | None = None
        self._taken: list[tuple[object, object]] = []
        self._counts = _Counts(what)

    def __getitem__(self, index: int) -> Any:
        """Return a row that was taken last, by the index that `take_within_pass` returned."""
        return self._taken[index - self.position + len(self._taken)][0]

    def before_tokenising(self, index: int) -> tuple[object, str]:
        """Return what a row that was taken last was made of, and the name of its source, by the row's index."""
        return self._taken[index - self.position + len(self._taken)][1], ""

    @property
    def epoch(self) -> float:
        """Return the number of whole passes; the length of a pass is unknown."""
        return float(self.passes)

    def num_batches(self, size: int) -> int | None:  # noqa: ARG002  as `Order.num_batches`
        """Return None: the length of a pass is unknown."""
        return None

    def take_within_pass(self, num: int) -> list[int]:
        """Read and tokenise the next `num` usable rows, or fewer if the pass ends before, and return their indices.

        Raises:
            DataError: a row cannot be read or tokenised, or a whole pass has no usable row.
        """
        taken: list[tuple[object, object]] = []
        while len(taken) < num:
            start, rows = self.num_read, self._read(num - len(taken))
            if rows:
                tokenised = self.tokenise(rows, f"{self.what}[{start}:]")
                if len(tokenised) != len(rows):
                    raise DataError(
                        f"{self.what}[{start}:]: {len(rows)} rows give {len(tokenised)} samples, and a streamed row "
                        "gives one: with data.turns=each, stream rows with one turn to train on, or leave "
                        "data.streaming out"
                    )
                usable = [pair for pair in zip(tokenised, rows, strict=True) if self.is_usable(pair[0])]
                self._counts.add(tokenised, [row for row, _ in usable])
                taken += usable
            elif taken:
                break
            else:
                self._begin_pass(start)
        self._taken = taken
        self.position += len(taken)
        return list(range(self.position - len(taken), self.position))

    def head(self) -> Sequence[Any]:
        """Return the first rows of the first pass, tokenised."""
        self.rows.set_epoch(0)
        return self.tokenise([rename(row, self._names) for row in islice(iter(self.rows), HEAD)], self.what)

    def _begin_pass(self, num_rows: int) -> None:
        if self.position == self.begun_at:
            reason = "has no row from which anything can be learned" if num_rows else "is empty"
            raise DataError(f"{self.what}: the stream {reason}")
        self._counts.end_pass()
        self.passes, self.num_read, self._iterator = self.passes + 1, 0, None
        self.begun_at = self.position

    def _read(self, num: int) -> list[Any]:
        try:
            if self._iterator is None:
                self.rows.set_epoch(self.passes)
                self._iterator = islice(iter(self.rows), self.num_read, None)
            rows = list(islice(self._iterator, num))
        except RLCoreError:
            raise
        except (Exception, SystemExit) as error:  # a user's generator may raise anything
            raise DataError(
                f"{self.what}[{self.num_read}:]: reading the rows raised {describe_error(error)}"
            ) from error
        self.num_read += len(rows)
        return [rename(row, self._names) for row in rows]

    def state_dict(self) -> State:
        """Return how many passes ended, and how many rows were read in the current one and taken in all."""
        return {name: getattr(self, name) for name in ("passes", "num_read", "position", "begun_at")}

    def load_state_dict(self, state: State) -> None:
        """Continue after the row that was read last.

        Raises:
            CheckpointError: the checkpoint is that of a run whose samples were not streamed.
        """
        if state.keys() != self.state_dict().keys():
            was = f"streamed the mixture {state['weights']}" if "streams" in state else f"read all {self.what} at once"
            now = "one source is" if "streams" in state else "they are"
            raise CheckpointError(
                f"the checkpoint was written by a run that {was}, and now {now} streamed: "
                "resume with the original data, or start a new run from the checkpoint's model folder"
            )
        for name, value in state.items():
            setattr(self, name, value)
        self._iterator = None


class _Counts:
    """Counts streamed rows that are truncated or left out.

    A warning states the counts at the first such row, whenever they have grown tenfold, and at the end of the pass;
    later passes, which have the same rows, are not counted.

    Args:
        what: the option that holds the data set, for the warning.
    """

    def __init__(self, what: str) -> None:
        self._what, self._num_read, self._num_stated, self._is_open = what, 0, 0, True
        self._counts: Counter[str] = Counter()

    def add(self, read: Sequence[object], usable: Sequence[object]) -> None:
        """Count rows that were read, and those of them that are trained on."""
        if self._is_open:
            self._num_read += len(read)
            self._counts.update(count_truncated(usable), left_out=len(read) - len(usable))
            self._state(10 * self._num_stated)

    def end_pass(self) -> None:
        """State the counts if they have grown since the last warning, and count no more."""
        if self._is_open:
            self._state(self._num_stated + 1)
            self._is_open = False

    def _state(self, least: int) -> None:
        if self._counts.total() >= max(least, 1):
            self._num_stated = self._counts.total()
            warn_of_counts(self._counts, self._what, read=self._num_read)


def open_stream(source: Any, data: DataConfig, *, seed: int, limit: int = 0, what: str = "samples") -> Any:
    """Return the iterable data set of a source that is to be streamed; None if the source is read whole.

    Args:
        source: an iterable data set, or with `data.streaming` one file or several of one
            type, a name on the hub or `module:function`.
        data: the options `streaming` and `shuffle_buffer`.
        seed: seed of the shuffling.
        limit: rows that are read, the first ones; 0 for all.
        what: the option that holds the source, for errors.

    Raises:
        DataError: the source cannot be streamed.
    """
    if not (is_stream(source) or data.streaming):
        return None
    if source is None:
        raise DataError(
            f"data.streaming: there are no {what}, and nothing else is streamed (prompts and held-out rows are read "
            "whole); leave data.streaming out"
        )
    rows = source if is_stream(source) else _open(source, what)
    if not is_stream(rows):
        raise DataError(
            f"data.streaming: {what} is {shorten(source)} ({type(rows).__name__}), which is no stream; give a file, a "
            "data set of the hub or a datasets.IterableDataset, or leave data.streaming out"
        )
    rows = rows.take(limit) if limit else rows
    return rows.shuffle(seed=seed, buffer_size=data.shuffle_buffer) if data.shuffle_buffer else rows


def _open(source: object, what: str) -> Any:
    if (names := file_names(source, what)) is not None:
        return _open_files(names, what)
    if not isinstance(source, (str, Path)):
        return source
    name, path = str(source), existing_path(str(source))
    suffix = type_of(name)
    if path is not None and path.is_dir() and not is_saved(path):
        return _open_files(list(map(str, files_in(path, what))), what)
    if (path is not None and suffix in READERS) or is_pattern(name):
        return _open_files([name], what)
    if path is None and "/" in name and suffix not in READERS:
        repository, subset, split = parse_hub_name(name, what)
        how: dict[str, object] = {"path": repository, "name": subset, "split": split}
        return guard_datasets(lambda library: library.load_dataset(streaming=True, **how), name, what)
    if path is None and ":" in name:
        target = load_reference(name, what)
        return target() if callable(target) else target
    raise DataError(f"data.streaming: {what} = {name!r}: is no file of {', '.join(READERS)} and no data set of the hub")


def _open_files(given: Sequence[str | Path], what: str) -> object:
    names: list[str | Path] = []
    for name in map(str, given):
        names += matching_files(name, what) if is_pattern(name) else [name]
    kinds = list(dict.fromkeys(map(type_of, names)))
    if len(kinds) > 1 or kinds[0] not in READERS:
        raise DataError(
            f"data.streaming: {what} has files of the types {', '.join(kinds)}; files that are streamed must be of one "
            f"type, one of {', '.join(READERS)}"
        )
    paths = [existing_path(name) for name in names]
    if None in paths:
        absent = paths.index(None)
        raise DataError(f"{what}[{absent}] = {str(names[absent])!r}: there is no such file")
    files, shown = list(map(str, paths)), ", ".join(map(str, names))
    if kinds[0] != ".parquet":
        if next(_rows_of(files, what), None) is None:
            raise DataError(f"{what}: {shown} has no rows")
        how: dict[str, object] = {"gen_kwargs": {"paths": files, "what": what}}
        return guard_datasets(lambda library: library.IterableDataset.from_generator(_rows_of, **how), shown, what)
    for file in files:
        check_compression(Path(file), what)
    how = {"path": "parquet", "data_files": files, "split": "train", "streaming": True}
    try:
        return guard_datasets(lambda library: library.load_dataset(**how), shown, what, advice=DAMAGED)
    except StopIteration:  # of the library, which reads the first rows of a file
        raise DataError(f"{what}: {shown} has no rows") from None


def _rows_of(paths: Sequence[str], what: str) -> Iterator[object]:
    """Yield the rows of files, each text of a text file as a mapping, which the `datasets` library takes."""
    for path in paths:
        for row in iterate_file(Path(path), what):
            yield {"text": row} if isinstance(row, str) else row
