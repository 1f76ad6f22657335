"""The plain console of a run: one line for each step and evaluation, and a last one.

A plugin may replace it (`wrap_component`) by one with colours, tables, completions and a progress bar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.config import config, option
from rlcore.loggers import episode_metrics, main_metrics
from rlcore.safe_text import hide_logins, write

if TYPE_CHECKING:
    from rlcore.protocols import RunView


@config
class ConsoleConfig:
    """Options of the console output."""

    metrics: tuple[str, ...] = option(
        (), "metrics on each step's line, by their full keys; those that the trainer names, and usual ones, if empty"
    )
    every: int = option(
        1, "number of steps between two printed lines; evaluations are always printed", ge=1, unit="steps"
    )
    show: int | None = option(None, "completions printed at an evaluation; default: `eval.show`", ge=0)
    progress: bool = option(True, "show a progress bar if the output is a terminal and a plugin draws one")


class ConsoleLogger:
    """Logger that prints plain lines to standard output.

    Args:
        config: its options.
        run: the logged run.

    Attributes:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView) -> None:
        self.config, self.run = config, run

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a training step, or of an evaluation."""
        evaluation = {key.removeprefix("eval/"): value for key, value in metrics.items() if key.startswith("eval/")}
        training = {key: value for key, value in metrics.items() if not key.startswith("eval/")}
        if training and (step % self.config.every == 0 or step == self.run.total_steps):
            self._print("step", step, training, self.config.metrics)
        if evaluation:
            self._print("eval", step, evaluation)

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print nothing: the rows are in completions.jsonl."""

    def close(self, error: BaseException | None) -> None:
        """Print whether the run has failed, and its folder."""
        ended = "finished" if error is None else f"{type(error).__name__}: {hide_logins(str(error))}"
        write(f"{ended} after step {self.run.step}: {self.run.dir}")

    def _print(self, kind: str, step: int, metrics: Mapping[str, float], names: Sequence[str] = ()) -> None:
        total = "" if self.run.total_steps is None else f"/{self.run.total_steps}"
        found = names or dict.fromkeys([*main_metrics(metrics, self.run.headline), *episode_metrics(metrics)])
        shown = [name for name in found if name in metrics]
        write(f"{kind} {step}{total}" + "".join(f"   {name} {float(metrics[name]):.4g}" for name in shown))
