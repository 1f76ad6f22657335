"""Runs on disk, and the rows of their `rollouts.jsonl` and `completions.jsonl`."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs

from rlcore.checkpoints.run_folder import RunDir
from rlcore.config import load_yaml
from rlcore.errors import ConfigError, NoRollouts
from rlcore_report.run_files import Row, last_change, read_rows, runs_in


@attrs.frozen
class Query:
    """A selection of rows; an empty query selects the rows of the last step that has any.

    Attributes:
        steps: first and last step.
        best: number of rows with the highest rewards, highest first.
        worst: number of rows with the lowest rewards, lowest first.
        text: substring of the prompt or the output, ignoring case.
    """

    steps: tuple[int, float] | None = None
    best: int = 0
    worst: int = 0
    text: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether the query has no condition."""
        return self == Query()


@attrs.frozen
class RunSummary:
    """One run in the list of runs: last step, numbers of rollouts and completions, time of the last change."""

    run: str
    steps: int
    rollouts: int
    completions: int
    changed: str


def parse_steps(text: str) -> tuple[int, float]:
    """Parse `7`, `3:9`, `3:` or `:9` into the first and the last step.

    Raises:
        ConfigError: the text has another form, or the range is reversed.
    """
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip(), re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise ConfigError(f"steps {text!r}: must be a step or a range, such as 7, 3:9, 3: or :9")
    first = int(match[1] or 0)
    last = (int(match[3]) if match[3] else math.inf) if match[2] else first
    if last < first:
        raise ConfigError(f"steps {text!r}: the range is reversed; write {last}:{first}")
    return first, last


def list_runs(root: Path) -> list[RunSummary]:
    """Summarise the runs in `root`, most recently changed first.

    Raises:
        NoRollouts: `root` contains no run.
    """
    folders = runs_in(root)
    if not folders:
        raise NoRollouts(f"{root} contains no run; name the folder of a run: rlcore rollouts RUN")
    return [
        RunSummary(
            run=folder.name,
            steps=max((row["step"] for row in read_rows(RunDir(folder).metrics)), default=0),
            rollouts=_count_lines(RunDir(folder).rollouts),
            completions=_count_lines(RunDir(folder).completions),
            changed=datetime.fromtimestamp(last_change(folder)).astimezone().isoformat(sep=" ", timespec="minutes"),
        )
        for folder in folders
    ]


def select(run: Path, query: Query, *, completions: bool = False) -> dict[str, list[Row]]:
    """Return the rows of a run that match a query, as title -> rows.

    Args:
        run: the run's folder.
        query: conditions on the rows.
        completions: read completions of evaluations instead of rollouts.

    Raises:
        NoRollouts: the run has no rows, or none matches; the message states which steps have rows.
    """
    file = RunDir(run).completions if completions else RunDir(run).rollouts
    what = "completions" if completions else "rollouts"
    if query.is_empty:
        last = _last_step(file)
        groups = {f"{what} of step {last[0]['step']}": last} if last else {}
    elif query.best or query.worst:
        groups = _ranked(file, query, what)
    else:
        groups = {what: list(_matching(file, query))}
    groups = {title: rows for title, rows in groups.items() if rows}
    if not groups:
        raise NoRollouts(_explain(run, file, query, what))
    return groups


def _last_step(file: Path) -> list[Row]:
    rows: list[Row] = []
    for row in read_rows(file):
        if rows and row["step"] != rows[0]["step"]:
            rows = []
        rows.append(row)
    return rows


def _matching(file: Path, query: Query) -> Iterator[Row]:
    first, last = query.steps or (0, math.inf)
    text = query.text.casefold()
    for row in read_rows(file):
        texts = (str(row.get(key, "")).casefold() for key in ("prompt", "output"))
        if first <= row["step"] <= last and (not text or any(text in each for each in texts)):
            yield row


def _ranked(file: Path, query: Query, what: str) -> dict[str, list[Row]]:
    """Return the best and the worst rows; the file is read twice, so that only the results are kept in memory."""

    def numbered() -> Iterator[tuple[float, int, Row]]:
        for number, row in enumerate(_matching(file, query)):
            if isinstance(row.get("reward"), int | float):
                yield row["reward"], number, row

    best = heapq.nlargest(query.best, numbered(), key=lambda entry: (entry[0], -entry[1]))
    taken = {number for _, number, _ in best}
    rest = (entry for entry in numbered() if entry[1] not in taken)
    worst = heapq.nsmallest(query.worst, rest, key=lambda entry: entry[:2])
    return {
        f"{what} with the highest rewards": [row for *_, row in best],
        f"{what} with the lowest rewards": [row for *_, row in worst],
    }


def _explain(run: Path, file: Path, query: Query, what: str) -> str:
    """Return the reason why no row was selected, and the remedy."""
    steps = {row["step"] for row in read_rows(file)}
    if steps:
        verb = "has a reward" if (query.best or query.worst) and any(_matching(file, query)) else "matches"
        return f"{file}: none of the {what} {verb}; the file has steps {min(steps)} to {max(steps)}"
    if what == "completions":
        return f"{run} has no completions yet: no evaluation has finished, or the run has no eval_prompts"
    kept = _option(run)
    if kept in ("none", 0):
        return f"{run} keeps no rollouts because run.rollouts = {kept}: set it to a number per step, or to all"
    return f"{run} has no rollouts yet: no step has finished, or its trainer uses no reward function"


def _option(run: Path) -> Any:
    """Return `run.rollouts` from the run's configuration; None if the file is damaged."""
    try:
        return load_yaml(RunDir(run).config)["run"]["rollouts"]
    except (ConfigError, KeyError, TypeError):  # the file was edited by hand
        return None


def _count_lines(file: Path) -> int:
    """Count lines without parsing them: a run may have millions."""
    if not file.is_file():
        return 0
    with file.open("rb") as parts:
        return sum(part.count(b"\n") for part in iter(lambda: parts.read(1 << 20), b""))
