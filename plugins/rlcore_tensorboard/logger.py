"""The logger `tensorboard`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from rlcore.config import dump_yaml, unstructure
from rlcore.protocols import RunView
from rlcore_tensorboard.config import TensorBoardConfig


class TensorBoardLogger:
    """Write event files (`rlcore.protocols.Logger`): scalars under their own keys, completions and options as text.

    A resumed run goes on in a new file of the same folder, which tells TensorBoard to drop what earlier files say of
    steps after the checkpoint.
    """

    def __init__(self, config: TensorBoardConfig, run: RunView) -> None:
        self._run, self._num_shown = run, config.completions
        folder = run.dir / "tensorboard" if config.log_dir is None else Path(config.log_dir) / run.dir.name
        # What earlier files say of purge_step and later is dropped; a run that begins keeps nothing of them.
        purge_step = run.step + 1 if run.step else 0
        writer = SummaryWriter(str(folder), purge_step=purge_step, flush_secs=config.flush_every_s)
        self._writer = cast("Any", writer)  # torch declares its attribute `file_writer` as None
        options = unstructure(run.config)
        self._writer.add_text("config", _block(dump_yaml(options)), run.step)
        experiment, begun, self._ended = hparams(dict(_leaves(options)), {run.config.checkpoint.metric: 0.0})
        self._writer.file_writer.add_summary(experiment, run.step)
        self._writer.file_writer.add_summary(begun, run.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a scalar for each metric of a training step or of an evaluation."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the first completions as a text each, and flush them to disk."""
        for i, row in enumerate(rows[: self._num_shown]):
            self._writer.add_text(f"completions/{i}", _shown(row), step)
        self._writer.flush()

    def close(self, error: BaseException | None) -> None:
        """Flush all events, mark the run as a success unless an error ended it, and close the file."""
        if error is None:
            self._writer.file_writer.add_summary(self._ended, self._run.step)
        self._writer.close()


def _shown(row: Mapping[str, Any]) -> str:
    """Write a completion as Markdown."""
    texts = [f"{name}\n\n{_block(str(row[name]))}" for name in ("prompt", "output") if name in row]
    return "\n\n".join([*texts, ", ".join(f"{name} {row[name]}" for name in row if name not in ("prompt", "output"))])


def _block(text: str) -> str:
    """Set text in a Markdown block that no text can end."""
    return textwrap.indent(text or " ", "    ", lambda _: True)


def _leaves(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, bool | int | float | str]]:
    """Name the plain values of nested options by dotted paths, as runs are compared by them."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            yield f"{prefix}{name}", value
