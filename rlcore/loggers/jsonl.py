"""Write all metrics and completions to the run's folder, one JSON object a line."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlcore.config.plain import to_json
from rlcore.logging import get_logger
from rlcore.protocols import RunView

log = get_logger("rlcore.loggers")


class JsonlLogger:
    """Append to metrics.jsonl and completions.jsonl of the run; a line is on its way to the disk when a call returns.

    Numbers are not rounded. nan, inf and -inf are written as null, under their key: JSON has no word for them, and
    readers differ in what else they take. Lines that cannot be written, as when the disk is full, wait for the next
    call; if there still is no room at the end, `close` raises.
    """

    def __init__(self, config: None, run: RunView) -> None:  # noqa: ARG002  a logger's signature; it has no options
        self._metrics = JsonLines(run.dir / "metrics.jsonl")
        self._completions = JsonLines(run.dir / "completions.jsonl")

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line: `step`, then the metrics."""
        self._metrics.add(step, [metrics])

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write one line a row: `step`, then what the row holds."""
        self._completions.add(step, rows)

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 (a logger's signature)
        """Write what is still waiting.

        Raises:
            OSError: it cannot be written.
        """
        self._metrics.flush()
        self._completions.flush()


class JsonLines:
    """Append records to a file, one JSON object a line: a line that did not fit is taken back and kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque()

    def add(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Write a line for each record, `step` first, after those still waiting."""
        had_waited = bool(self.waiting)
        self.waiting += [_with_step(step, record) for record in records]
        try:
            self.flush()
        except OSError as error:
            if not had_waited:
                log.warning("lines wait until they can be written", file=str(self.path), error=str(error))

    def flush(self) -> None:
        """Write every line that waits.

        Raises:
            OSError: it cannot be written; it still waits.
        """
        if not self.waiting:
            return
        with self.path.open("ab", buffering=0) as file:
            while self.waiting:
                start = os.fstat(file.fileno()).st_size
                rest = memoryview(self.waiting[0])
                try:
                    while rest:
                        rest = rest[os.write(file.fileno(), rest) :]
                except OSError:
                    os.ftruncate(file.fileno(), start)
                    raise
                self.waiting.popleft()


def _with_step(step: int, record: Mapping[str, Any]) -> bytes:
    return (to_json({"step": step, **{key: value for key, value in record.items() if key != "step"}}) + "\n").encode()
