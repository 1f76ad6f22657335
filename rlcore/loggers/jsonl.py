"""Logger that writes all metrics and completions to the run's folder, one JSON object per line."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rlcore.config.options import to_json
from rlcore.logging import get_logger
from rlcore.protocols import RunView

log = get_logger("rlcore.loggers")


class JsonlLogger:
    """Logger that appends to metrics.jsonl and completions.jsonl of the run, unbuffered.

    Numbers are not rounded. nan, inf and -inf are written as null, because JSON cannot represent them. Lines that
    cannot be written, for example because the disk is full, are retried at the next call; `close` raises if they still
    cannot be written.
    """

    def __init__(self, config: None, run: RunView) -> None:  # noqa: ARG002  a logger's signature; it has no options
        self._metrics = JsonLines(run.dir / "metrics.jsonl")
        self._completions = JsonLines(run.dir / "completions.jsonl")

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line: `step`, then the metrics."""
        self._metrics.add(step, [metrics])

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Write one line per row: `step`, then the row's values."""
        self._completions.add(step, rows)

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 (a logger's signature)
        """Write all pending lines.

        Raises:
            OSError: a line cannot be written.
        """
        self._metrics.flush()
        self._completions.flush()


class JsonLines:
    """A file of JSON lines to append to; a partially written line is truncated again and stays pending."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pending: deque[bytes] = deque()

    def add(self, step: int, records: Iterable[Mapping[str, object]]) -> None:
        """Write the pending lines and one line for each record, `step` first."""
        had_pending = bool(self.pending)
        self.pending += [_with_step(step, record) for record in records]
        try:
            self.flush()
        except OSError as error:
            if not had_pending:
                log.warning(
                    "lines could not be written; retrying at the next call", file=str(self.path), error=str(error)
                )

    def flush(self) -> None:
        """Write all pending lines.

        Raises:
            OSError: a line cannot be written; it stays pending.
        """
        if not self.pending:
            return
        with self.path.open("ab", buffering=0) as file:
            while self.pending:
                start = os.fstat(file.fileno()).st_size
                rest = memoryview(self.pending[0])
                try:
                    while rest:
                        rest = rest[os.write(file.fileno(), rest) :]
                except OSError:
                    os.ftruncate(file.fileno(), start)
                    raise
                self.pending.popleft()


def _with_step(step: int, record: Mapping[str, object]) -> bytes:
    return (to_json({"step": step, **{key: value for key, value in record.items() if key != "step"}}) + "\n").encode()
