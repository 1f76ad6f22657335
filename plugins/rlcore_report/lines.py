"""What a console shows of a run: a line for each step and evaluation, some completions and a final summary.

Also in this file: the metrics that matter most in a run, and the formatting of numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from numbers import Real
from typing import TYPE_CHECKING, Any

from rlcore.checkpoints.run_folder import RunDir
from rlcore.loggers import display_row, episode_metrics, place_in
from rlcore.loggers.console import ConsoleConfig
from rlcore.safe_text import hide_logins, visible, write

if TYPE_CHECKING:
    from rlcore.protocols import RunView


USUAL = (
    "reward/mean",
    "kl/mean",
    "loss/policy",
    "loss/value",
    "response/length_mean",
    "loss/total",
    "loss",
    "grad/norm",
    "lr",
)
"""Metrics that most trainers have, in the order in which they are shown."""
KNOWN_GROUPS = (
    "advantage", "data", "grad", "kl", "loss", "lr", "perf", "policy", "progress", "response", "reward", "time",
    "value",
)  # fmt: skip
"""Groups that are shown only by the names in `USUAL`, unless a trainer names more of them."""
SIDE_STATISTICS = ("/std", "/min", "/max", "/median", "_s")
MAX_CELLS = 5
"""Metrics in a step's line or a sample's row; all that a trainer names are shown, however many they are."""
EPISODE = "episode/"
"""Beginning of the metrics of episodes, which are shown beside those that a trainer names."""
EPISODE_COLUMNS = (EPISODE, "environment/", "curriculum/")
"""Beginnings of columns about the episodes of an environment."""


def scores_first(names: Iterable[str]) -> list[str]:
    """Return the columns of completions, with those about episodes after all others, so that scores have room."""
    return sorted(names, key=lambda name: name.startswith(EPISODE_COLUMNS))


def headline_metrics(names: Iterable[str], headline: Sequence[str]) -> list[str]:
    """Choose the metrics of a step's line: those that the trainer names, then usual ones as long as there is room.

    Without names from the trainer, the first metric of each group that rlcore does not know follows the reward, the KL
    and the losses of the policy, so that new metrics are seen without an option.

    Args:
        names: the metrics of the step.
        headline: the names that the trainer declares (`rlcore.protocols.Trainer`).
    """
    main = [name for name in names if not name.endswith(SIDE_STATISTICS) and not name.startswith(EPISODE)]
    named = [name for name in main if place_in(headline, name) < len(headline)]
    named = sorted(named, key=lambda name: place_in(headline, name))
    usual = [name for name in USUAL if name in main and name not in named]
    if named:
        return [*named, *usual[: max(MAX_CELLS - len(named), 0)]]
    if not usual:
        return main[:MAX_CELLS]
    firsts: dict[str, str] = {}
    for name in main:
        firsts.setdefault(name.partition("/")[0], name)
    new = [name for group, name in firsts.items() if group not in KNOWN_GROUPS][: MAX_CELLS - 2]
    return [*usual[: MAX_CELLS - len(new)], *new]


NUMBER_WIDTH = 9


def short_name(key: str) -> str:
    """Shorten a key if it stays unambiguous: `reward/mean` to `reward`, `response/length_mean` to `length`."""
    name, at, sampling = key.partition("@")
    short = name.removesuffix("/mean").removesuffix("/total").removeprefix("response/").removesuffix("_mean")
    return short + at + sampling


def show_number(value: float) -> str:
    """Format a metric with fixed width and its significant digits."""
    value = float(value)
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        text = f"{value:g}"
    elif 10 <= size < 1e6 and value.is_integer():
        text = f"{value:.0f}"
    elif size < 1e-3 or size >= 1e5:
        text = f"{value:.2e}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:.2f}"
    return f"{text:>{NUMBER_WIDTH}}"


def show_cell(value: Any) -> str:
    """Format a number for a table: an integer unchanged, a float like a metric; "" for any other value."""
    if not _is_number(value):
        return ""
    return str(value) if isinstance(value, int) else show_number(value).strip()


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for notebooks; texts are escaped."""
    lines = [("th", head), *(("td", row) for row in rows)]
    body = ("".join(f"<{tag}>{escape(visible(cell))}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>" + "".join(f"<tr>{cells}</tr>" for cells in body) + "</table>"


TIME_KEYS = ("time/step_s", "time/total_s")
PROMPT_CHARS, OUTPUT_CHARS = 200, 400
"""Longest shown parts of a completion: the end of its prompt, and its beginning."""


class LineLogger:
    """Logger that prints lines, of which subclasses say how.

    Args:
        config: its options.
        run: the logged run.

    Attributes:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView) -> None:
        self.config, self.run = config, run
        self._last: dict[str, float] = {}
        self._started, self._first_step = time.monotonic(), run.step

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a training step, or of an evaluation."""
        evaluation = {key: value for key, value in metrics.items() if key.startswith("eval/")}
        training = {key: value for key, value in metrics.items() if key not in evaluation}
        self._last.update(metrics)
        if training and (step % self.config.every == 0 or step == self.run.total_steps):
            seconds = next((training[key] for key in TIME_KEYS if key in training), None)
            self._print_line("step", step, self._cells(training), seconds)
        if evaluation:
            self._print_line("eval", step, _evaluation_cells(evaluation, self.run.headline), None)

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Print the first rows: prompt, output and scores; a sweep shows rows of every sampling setting."""
        show = self.run.config.eval.show if self.config.show is None else self.config.show
        if not rows or not show:
            return
        groups: dict[Any, list[Mapping[str, object]]] = {}
        for row in rows:
            groups.setdefault(row.get("sampling"), []).append(row)
        shown = [row for group in groups.values() for row in group[: -(-show // len(groups))]][:show]
        title = f"completions after step {step}, {len(shown)} of {len(rows)}"
        self._print_rows(list(map(display_row, shown)), title)

    def close(self, error: BaseException | None) -> None:
        """Print a summary: steps, time, last metrics, folder, how to load or resume."""
        run, steps = self.run, self.run.step - self._first_step
        summary = f"{steps} step{'' if steps == 1 else 's'} in {_duration(time.monotonic() - self._started)}"
        early = run.total_steps is not None and run.step < run.total_steps
        if error is None:
            resumed = f", now at step {run.step}" if self._first_step else ""
            self._print(f": {summary}{resumed}", *(("stopped", "bold yellow") if early else ("finished", "bold green")))
        elif isinstance(error, KeyboardInterrupt):
            self._print(f" after step {run.step}: {summary}", "interrupted", "bold yellow")
        else:
            cause = f"{type(error).__name__}: {hide_logins(str(error))}"
            self._print(f" after step {run.step}: {summary}\n  {cause}", "failed", "bold red")
        evaluation = {key: value for key, value in self._last.items() if key.startswith("eval/")}
        cells = _evaluation_cells(evaluation, run.headline) or self._cells(self._last)
        if cells:
            numbers = "   ".join(f"{label} {show_number(value).strip()}" for label, value in cells)
            self._print(f"  {'last eval' if evaluation else 'last step'}  {numbers}")
        self._print(f"  run        {run.dir}")
        if error is None and (run.dir / "model").is_dir():
            folder, loader = (run.dir / "model").as_posix(), run.export_class
            loader = loader if "." in loader else f"transformers.{loader}"
            self._print(f'  load       {loader}.from_pretrained("{folder}")')
        if (error is not None or early) and (command := RunDir(run.dir).continuation()):
            self._print(f"  go on      {command}")
        for dropped in run.take_unreported():
            self._print("", f"  dropped    {dropped}", "yellow")

    def _cells(self, metrics: Mapping[str, float]) -> list[tuple[str, float]]:
        chosen = [*headline_metrics(metrics, self.run.headline), *episode_metrics(metrics)]
        names = self.config.metrics or dict.fromkeys(chosen)
        return [(short_name(key), metrics[key]) for key in names if key in metrics]

    def _count(self, step: int) -> str:
        """Return the number of a step and of all steps, in the width of the longest."""
        total = self.run.total_steps
        return f"{step:>6}" if total is None else f"{f'{step}/{total}':>{2 * len(str(total)) + 1}}"

    def _print_line(self, kind: str, step: int, cells: Sequence[tuple[str, float]], seconds: float | None) -> None:
        """Print the line of a step (`step`) or an evaluation (`eval`)."""
        end = "" if seconds is None else f"   {seconds:8.2f} s"
        line = "".join(f"   {label} {show_number(value)}" for label, value in cells)
        self._print(f" {self._count(step)}{line}{end}", kind)

    def _print_rows(self, rows: Sequence[Mapping[str, object]], title: str) -> None:
        """Print rows of completions."""
        self._print(title)
        for row in rows:
            shown = {key: show_cell(value) for key, value in row.items() if show_cell(value)}
            numbers = [f"   {short_name(key)} {shown[key]}" for key in scores_first(shown)]
            prompt, output = str(row.get("prompt", ""))[-PROMPT_CHARS:], str(row.get("output", ""))[:OUTPUT_CHARS]
            self._print(f"  {prompt!r} → {output!r}{''.join(numbers[:MAX_CELLS])}")

    def _print(self, text: str, word: str = "", style: str = "") -> None:  # noqa: ARG002  plain text has no style
        """Print a line that begins with a word in a style, such as `bold red`."""
        write(word + text)


def _evaluation_cells(metrics: Mapping[str, float], headline: Sequence[str]) -> list[tuple[str, float]]:
    """Choose the metrics on an evaluation's line; for a sweep, all values of a metric are adjacent.

    The metrics of episodes follow after all others: their turns and success, and the ends that occurred.
    """
    keys: dict[str, list[str]] = {}
    for key in metrics:
        name = key.removeprefix("eval/").partition("@")[0]
        if not name.endswith(SIDE_STATISTICS) and not name.startswith(EPISODE):
            keys.setdefault(name, []).append(key)
    shown: list[str] = []
    main = next((entry.removeprefix("eval/") for entry in headline if entry.startswith("eval/")), "")
    for name in sorted(keys, key=lambda name: (name != main, _distance_from_purpose(name), place_in(headline, name))):
        if len(shown) < MAX_CELLS:
            shown += keys[name]
    shown += [f"eval/{name}" for name in episode_metrics({key.removeprefix("eval/"): metrics[key] for key in metrics})]
    return [(short_name(key.removeprefix("eval/")), metrics[key]) for key in shown]


def _distance_from_purpose(name: str) -> int:
    """Rank rewards first, then values of a metric function and the loss, then response statistics."""
    if name == "reward/mean":
        return 0
    return 1 if "/" not in name else 3 if name.startswith("response/") else 2


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
