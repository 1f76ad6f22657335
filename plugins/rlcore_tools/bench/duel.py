"""Compare two programs: run them alternately and take the ratio of each pair.

Each program is a script that runs in its own process with one thread and prints one line of JSON last: a mapping of
names to figures, with `cpu_s`, `wall_s` and `peak_rss_mb` where they make sense. A missing figure, for example the time
to a level that was never reached, is null.

Figures from different machines, or from one machine at different times, are not comparable; the ratio of two programs
that alternate is.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from rlcore.child import run

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
TIMEOUT_S = 3600

Figures = dict[str, Any]


class RunFailed(Exception):
    """Error: a program failed. The message names it and shows the end of its stderr."""


@dataclass(frozen=True)
class Duel:
    """Two programs that do the same work, and the figure by which they are compared.

    Attributes:
        name: name of the duel, unique within the case.
        ours: a script and its arguments; `{repeat}` is replaced by the index of the pair, from 0.
        theirs: the same for the other program; None if ours is measured alone.
        figure: key of the compared figure in the scripts' output.
        better: whether more or less of it is better.
        goal: bound of the ratio ours / theirs: a lower bound where more is better, else an upper bound.
        own_goal: bound of our figure itself, if any.
        cpu_figure: the same figure in CPU seconds, shown beside it; reliable even if the machine is busy.
        others: further figures of the same runs, each with whether more or less of it is better; shown below it.
        other_goals: bounds of the ratios of some of these, as `goal`.
        environment: environment variables of both programs.
        ours_python, theirs_python: interpreters of the two programs, if they need separate environments.
        prepare: scripts with arguments to run first; each runs only once per benchmark run.
    """

    name: str
    ours: Sequence[str]
    theirs: Sequence[str] | None = None
    figure: str = "wall_s"
    better: Literal["more", "less"] = "less"
    goal: float | None = None
    own_goal: float | None = None
    cpu_figure: str | None = None
    others: Mapping[str, Literal["more", "less"]] = field(default_factory=dict)
    other_goals: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ours_python: str | None = None
    theirs_python: str | None = None
    prepare: Sequence[Sequence[str]] = ()


def run_python(
    *arguments: str,
    scripts: Path,
    python: str | None = None,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:
    """Run a script of the folder `scripts` in its own process with one thread, and return its last output line.

    Raises:
        RunFailed: the script exits with an error or times out.
    """
    script, *rest = arguments
    command = [python or sys.executable, str(scripts / script), *rest]
    variables = {**os.environ, **OFFLINE, **ONE_THREAD, **(environment or {})}
    done = run(command, env=variables, cwd=cwd, limit_s=TIMEOUT_S)
    if done.code is None:
        raise RunFailed(f"{script} did not end within {TIMEOUT_S} s")
    if done.code:
        raise RunFailed(f"{script} failed with exit code {done.code}:\n{done.errors[-4000:]}")
    return done.output.strip().rpartition("\n")[2]


def measure(
    duel: Duel,
    folder: Path,
    *,
    scripts: Path,
    repeats: int,
    told: Callable[[str], None] = lambda _: None,
    pairs: list[dict[str, Figures]] | None = None,
    is_enough: Callable[[], bool] = lambda: False,
) -> Figures:
    """Run both programs `repeats` times alternately, and summarise the figures.

    Args:
        duel: the programs to run.
        folder: working directory of the programs.
        scripts: folder of the programs.
        repeats: pairs; every second pair starts with the other program, so that drift of the machine affects both.
        told: called with a description of the next run.
        pairs: receives the figures of each pair as soon as both have run.
        is_enough: asked after each pair whether to end early.

    Raises:
        RunFailed: a program failed, or printed no line of figures.
    """
    pairs = [] if pairs is None else pairs
    sides: list[tuple[str, Sequence[str], str | None]] = [("ours", duel.ours, duel.ours_python)]
    if duel.theirs is not None:
        sides.append(("theirs", duel.theirs, duel.theirs_python))
    for repeat in range(repeats):
        pair: dict[str, Figures] = {}
        for side, argv, python in sides if repeat % 2 == 0 else sides[::-1]:
            told(f"{duel.name}: {side}, {repeat + 1} of {repeats}")
            arguments = [argument.replace("{repeat}", str(repeat)) for argument in argv]
            try:
                line = run_python(*arguments, scripts=scripts, python=python, environment=duel.environment, cwd=folder)
                pair[side] = _read(line, arguments[0], duel.figure)
            except RunFailed as failure:
                raise RunFailed(f"{side}, {repeat + 1} of {repeats}: {failure}") from failure
        pairs.append(pair)
        if is_enough():
            break
    return {**summarise(duel, pairs), "runs": pairs}


def _read(line: str, script: str, figure: str) -> Figures:
    try:
        figures = json.loads(line)
    except json.JSONDecodeError as error:
        raise RunFailed(f"{script}: its last line is no JSON: {line[:200]!r}") from error
    if not isinstance(figures, dict) or figure not in figures:
        raise RunFailed(f"{script}: its last line has no figure {figure!r}: {line[:200]}")
    return figures


def summarise(duel: Duel, pairs: Sequence[Mapping[str, Figures]]) -> Figures:
    """Return the median and range of each program and of the ratio, and whether the goals are reached.

    A missing figure counts as the worst possible value; its pair has no ratio.
    """
    summary: Figures = {"figure": duel.figure, "better": duel.better, "goal": duel.goal, "own_goal": duel.own_goal}
    summary |= _spreads(pairs, duel.figure, duel.better)
    if duel.cpu_figure:
        summary["cpu"] = _spreads(pairs, duel.cpu_figure, duel.better)
    if duel.others:
        summary["others"] = {each: _other(duel, pairs, each) for each in duel.others}
    summary["peak_rss_mb"] = {
        side: max(pair[side]["peak_rss_mb"] for pair in pairs)
        for side in pairs[0]
        if all(pair[side].get("peak_rss_mb") for pair in pairs)
    }
    judged = [(summary.get("ratio"), duel.goal), (summary["ours"], duel.own_goal)]
    verdicts = [_reaches(spread, bound, duel.better) for spread, bound in judged if bound is not None]
    summary["reached"] = all(verdicts) if verdicts else None
    return summary


def _other(duel: Duel, pairs: Sequence[Mapping[str, Figures]], figure: str) -> Figures:
    """Summarise a further figure, with its goal and whether it is reached if it has one."""
    better, goal = duel.others[figure], duel.other_goals.get(figure)
    spreads = _spreads(pairs, figure, better)
    reached = None if goal is None else _reaches(spreads.get("ratio"), goal, better)
    return {**spreads, "better": better, "goal": goal, "own_goal": None, "reached": reached}


def _spreads(pairs: Sequence[Mapping[str, Figures]], figure: str, better: str) -> Figures:
    """Summarise one figure: each program's, and the ratio ours / theirs of each pair."""
    worst = 0.0 if better == "more" else math.inf
    sides = {side: [worst if (f := pair[side].get(figure)) is None else f for pair in pairs] for side in pairs[0]}
    spreads: Figures = {side: spread(column) for side, column in sides.items()}
    if "theirs" in sides:
        both = zip(sides["ours"], sides["theirs"], strict=True)
        ratios = [ours / theirs for ours, theirs in both if 0 < ours < math.inf and 0 < theirs < math.inf]
        spreads["ratio"] = spread(ratios) if ratios else None
    return spreads


def spread(numbers: Sequence[float]) -> dict[str, float | None]:
    """Return median, minimum and maximum; None for values that are not finite, which JSON cannot represent."""
    three = {"median": median(numbers), "min": min(numbers), "max": max(numbers)}
    return {name: float(f"{number:.5g}") if math.isfinite(number) else None for name, number in three.items()}


def _reaches(spreads: Mapping[str, float | None] | None, bound: float, better: str) -> bool:
    middle = None if spreads is None else spreads["median"]
    if middle is None:
        return False
    return middle >= bound if better == "more" else middle <= bound
