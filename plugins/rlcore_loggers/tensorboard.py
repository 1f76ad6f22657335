"""The logger `tensorboard`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from rlcore.config import dump_yaml, path_named
from rlcore.loggers import display_row
from rlcore.protocols import RunView
from rlcore.settings import to_record
from rlcore_loggers.config import TensorBoardConfig


class TensorBoardLogger:
    """Logger of TensorBoard event files (`rlcore.protocols.Logger`): scalars, and texts for completions and options.

    A resumed run writes a new file to the same folder. Its `purge_step` makes TensorBoard discard earlier events after
    the checkpoint's step.
    """

    def __init__(self, config: TensorBoardConfig, run: RunView) -> None:
        self._run, self._num_shown = run, config.completions
        folder = next(iter(self.writes_outside(config, run)), run.dir / "tensorboard")
        # TensorBoard discards events of earlier files from purge_step on; a new run discards all of them.
        purge_step = run.step + 1 if run.step else 0
        writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=config.flush_every_s)
        self._writer = cast("Any", writer)  # torch declares its attribute `file_writer` as None
        options = to_record(run.config)
        self._writer.add_text("config", _block(dump_yaml(options)), run.step)
        experiment, begun, self._ended = hparams(dict(_leaves(options)), {str(run.config.checkpoint.metric): 0.0})
        self._writer.file_writer.add_summary(experiment, run.step)
        self._writer.file_writer.add_summary(begun, run.step)

    @staticmethod
    def writes_outside(config: TensorBoardConfig, run: RunView) -> list[Path]:
        """Return the folder in `log_dir`, if the options set it."""
        return [] if config.log_dir is None else [path_named(config.log_dir) / run.dir.name]

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write each metric of a training step or an evaluation as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Write the first completions as texts and flush them to disk."""
        for i, row in enumerate(rows[: self._num_shown]):
            self._writer.add_text(f"completions/{i}", _shown(display_row(row)), step)
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Flush all events, mark the run as a success unless an error ended it, and close the file."""
        if error is None:
            self._writer.file_writer.add_summary(self._ended, self._run.step)
        self._writer.close()


def _shown(row: Mapping[str, object]) -> str:
    """Return a completion as Markdown."""
    texts = [f"{name}\n\n{_block(str(row[name]))}" for name in ("prompt", "output") if name in row]
    return "\n\n".join([*texts, ", ".join(f"{name} {row[name]}" for name in row if name not in ("prompt", "output"))])


def _block(text: str) -> str:
    """Return text as an indented Markdown code block, which its content cannot close."""
    return textwrap.indent(text or " ", "    ", lambda _: True)


def _leaves(options: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Yield the plain values of nested options by dotted path, for TensorBoard's comparison of runs."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value
