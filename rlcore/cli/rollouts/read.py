"""Find runs on disk, and read what they sampled: what `rlcore rollouts` shows."""

from __future__ import annotations

import difflib
import heapq
import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import yaml

from rlcore.checkpoints.run_folder import RunDir, is_run
from rlcore.errors import ConfigError, NoRollouts

ROOT = Path("runs")
Row = dict[str, Any]


@attrs.frozen
class Query:
    """Hold which rows are asked for; with nothing asked, those of the last step there are any of.

    Attributes:
        steps: first and last step.
        best: so many with the highest rewards, highest first.
        worst: so many with the lowest, lowest first.
        text: prompt or output holds this, in small or large letters.
    """

    steps: tuple[int, float] | None = None
    best: int = 0
    worst: int = 0
    text: str = ""

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is asked."""
        return self == Query()


@attrs.frozen
class Listed:
    """Hold what a list of runs says of one: the steps done, lines in its files, and when it last went on."""

    run: str
    steps: int
    rollouts: int
    completions: int
    changed: str


def parse_steps(text: str) -> tuple[int, float]:
    """Turn `7`, `3:9`, `3:` or `:9` into the first and the last step.

    Raises:
        ConfigError: it is none of these.
    """
    found = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip(), re.ASCII)
    if found is None or not (found[1] or found[3]):
        raise ConfigError(f"steps {text!r}: must be a step or a range, as 7, 3:9, 3: or :9")
    first = int(found[1] or 0)
    last = (int(found[3]) if found[3] else math.inf) if found[2] else first
    if last < first:
        raise ConfigError(f"steps {text!r}: the last comes before the first; write {last}:{first}")
    return first, last


def find_run(name: str) -> Path:
    """Return the folder of a run that is named by its path or, where it lies under ./runs, by its name.

    Raises:
        NoRollouts: there is none.
    """
    for folder in (Path(name), ROOT / name):
        if is_run(folder):
            return folder
    near = difflib.get_close_matches(name, [folder.name for folder in runs_in(ROOT)], n=1)
    hint = f"did you mean '{near[0]}'?" if near else "`rlcore rollouts` lists the runs under ./runs"
    if held := runs_in(Path(name)):
        hint = f"{name} holds runs, the last of them {held[0]}: name one"
    raise NoRollouts(f"no run lies in {' or '.join(dict.fromkeys([name, str(ROOT / name)]))}; {hint}")


def runs_in(root: Path) -> list[Path]:
    """List the folders of the runs in `root`, the one that went on last first."""
    folders = [folder for folder in root.glob("*") if is_run(folder)]
    return sorted(folders, key=_changed, reverse=True)


def list_runs(root: Path) -> list[Listed]:
    """Say of each run in `root` how far it is and what it keeps.

    Raises:
        NoRollouts: there is no run.
    """
    folders = runs_in(root)
    if not folders:
        raise NoRollouts(f"{root} holds no run; give the folder of one that lies elsewhere: rlcore rollouts RUN")
    return [
        Listed(
            run=folder.name,
            steps=max((row["step"] for row in read_rows(RunDir(folder).metrics)), default=0),
            rollouts=_count_lines(RunDir(folder).rollouts),
            completions=_count_lines(RunDir(folder).completions),
            changed=datetime.fromtimestamp(_changed(folder)).astimezone().isoformat(sep=" ", timespec="minutes"),
        )
        for folder in folders
    ]


def read_rows(file: Path) -> Iterator[Row]:
    """Yield the rows of a file that may still grow: a last line that is half written, or damaged, is no row."""
    try:
        lines = file.open("rb")
    except FileNotFoundError:
        return
    with lines:
        for line in lines:
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                continue
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row


def select(run: Path, query: Query, *, completions: bool = False) -> dict[str, list[Row]]:
    """Return the rows asked for of a run, in groups by what they are.

    Args:
        run: its folder.
        query: which rows.
        completions: of evaluations, instead of what training sampled.

    Raises:
        NoRollouts: none was kept, or none is as asked for; the message says what there is.
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
    wanted = query.text.casefold()
    for row in read_rows(file):
        texts = (str(row.get(key, "")).casefold() for key in ("prompt", "output"))
        if first <= row["step"] <= last and (not wanted or any(wanted in text for text in texts)):
            yield row


def _ranked(file: Path, query: Query, what: str) -> dict[str, list[Row]]:
    """Read the file once for each end, so that only what is shown is held."""

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
    """Say why there is nothing to show, and what to do."""
    steps = {row["step"] for row in read_rows(file)}
    if steps:
        asked = "with a reward" if (query.best or query.worst) and any(_matching(file, query)) else "as asked for"
        return f"{file}: none of the {what} is {asked}; they are of steps {min(steps)} to {max(steps)}"
    if what == "completions":
        return f"{run} has no completions yet: no evaluation has ended, or none has prompts (eval_prompts)"
    kept = _option(run)
    if kept in ("none", 0):
        return f"{run} keeps no rollouts, as run.rollouts = {kept} says: set it to a number for each step, or to all"
    return f"{run} has no rollouts yet: no step has ended, or its trainer uses no reward function"


def _option(run: Path) -> Any:
    """Return what the run's configuration says of `run.rollouts`."""
    try:
        config = yaml.safe_load(RunDir(run).config.read_text(encoding="utf-8"))
        return config["run"]["rollouts"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):  # a file that somebody has changed
        return None


def _count_lines(file: Path) -> int:
    """Count without reading what the lines say: a run may keep millions."""
    if not file.exists():
        return 0
    with file.open("rb") as parts:
        return sum(part.count(b"\n") for part in iter(lambda: parts.read(1 << 20), b""))


def _changed(folder: Path) -> float:
    files = (RunDir(folder).metrics, RunDir(folder).config)
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
