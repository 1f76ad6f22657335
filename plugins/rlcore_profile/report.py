"""A profile as a text table, as JSON, and as a Chrome trace."""

from __future__ import annotations

import json
import os
from typing import Any

from rlcore_profile.recorder import TRACED, Profile
from rlcore_profile.stretches import Event, Path, PhaseRow, Stretch

SCHEMA = 1
OTHER = "other"
NS = 1_000_000_000


def make_table(profile: Profile) -> str:
    """Return the table of phases over all steps but the first, which has a line of its own if there are others.

    Rows without indent add up to the wall time. An indented row is part of the row above it.
    """
    counted, lines = profile.steps if profile.steps.num_steps else profile.first, []
    if counted.num_steps:
        first, last, each = counted.first_step, counted.last_step, counted.wall / counted.num_steps / NS
        span = f"step {first}" if first == last else f"steps {first} to {last}"
        lines += [f"where the time of {span} went: {each:.3g} s a step", *_rows(counted)]
    else:
        lines.append("no step was completed")
    if counted is profile.steps:
        lines.append(f"step {profile.first.first_step}, the first: {_in_a_line(profile.first)}")
    lines.append(f"outside these steps: {_in_a_line(profile.around)}")
    if counted.beside:
        lines.append("concurrent, not part of the sum:")
        lines += [_row(path, row, counted) for path, row in _in_order(counted.beside)]
    return "\n".join(lines) + "\n"


def as_json(profile: Profile) -> str:
    """Return the table's numbers unrounded, as JSON: each stretch of the run with its phases, in seconds."""
    profile_values = {
        "schema": SCHEMA,
        "steps": _plain(profile.steps),
        "first": _plain(profile.first),
        "around": _plain(profile.around),
    }
    return json.dumps(profile_values, indent=1) + "\n"


def as_trace(profile: Profile) -> str:
    """Return the first steps' phases in the Trace Event Format, which chrome://tracing and Perfetto open.

    A complete event (`"ph": "X"`) has a start `ts` and a duration `dur` in microseconds, and a thread's track `tid`. An
    awaited block becomes a pair of async events, start (`"b"`) and end (`"e"`), with a common `id`.
    """
    pid = os.getpid()
    names = [{"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "rank 0"}}]
    names += [
        {"name": "thread_name", "ph": "M", "pid": pid, "tid": number, "args": {"name": name}}
        for number, name in enumerate(profile.tracks)
    ]
    # Of events with equal start the longest encloses the others; trace viewers expect it first.
    events = sorted(profile.events, key=lambda event: (event.begun, -event.ended))
    origin = profile.begun
    entries = [entry for number, event in enumerate(events) for entry in _entries(event, number, pid, origin)]
    trace = {"displayTimeUnit": "ms", "otherData": {"steps": TRACED}, "traceEvents": [*names, *entries]}
    return json.dumps(trace) + "\n"


def _entries(event: Event, number: int, pid: int, origin: int) -> list[dict[str, Any]]:
    begun, ended = ((at - origin) / 1000 for at in (event.begun, event.ended))
    if event.track is not None:
        common = {"name": event.name, "cat": "phase", "ph": "X", "pid": pid, "tid": event.track}
        return [{**common, "ts": begun, "dur": (event.ended - event.begun) / 1000}]
    common = {"name": event.name, "cat": "awaited", "id": number, "pid": pid, "tid": 0}
    return [{**common, "ph": "b", "ts": begun}, {**common, "ph": "e", "ts": ended}]


def _rows(stretch: Stretch) -> list[str]:
    head = f"{'phase':<30}{'s':>10}{'self s':>10}{'ms/step':>10}{'share':>9}{'calls':>8}{'tokens/s':>12}"
    other = PhaseRow(stretch.other, stretch.other)
    rows = [_row(path, row, stretch) for path, row in _in_order(stretch.rows)]
    whole = PhaseRow(stretch.wall, stretch.wall)
    return [head, *rows, _row((OTHER,), other, stretch), _row(("all",), whole, stretch)]


def _row(path: Path, row: PhaseRow, stretch: Stretch) -> str:
    name = "  " * (len(path) - 1) + path[-1]
    each = row.total / 1e6 / max(stretch.num_steps, 1)
    share = 100 * row.total / max(stretch.wall, 1)
    times = f"{row.total / NS:>10.3f}{row.own / NS:>10.3f}{each:>10.2f}{share:>7.1f} %"
    counts = (row.calls, round(row.tokens * NS / max(row.total, 1)))
    calls, speed = (str(count) if count else "" for count in counts)
    return f"{name:<30}{times}{calls:>8}{speed:>12}".rstrip()


def _in_order(rows: dict[Path, PhaseRow]) -> list[tuple[Path, PhaseRow]]:
    """Sort rows so that each phase follows its enclosing phase, siblings by decreasing time."""

    def place(path: Path) -> tuple[tuple[int, str], ...]:
        outer = [path[: i + 1] for i in range(len(path))]
        # A phase that is still open has no row yet, though phases within it may have one.
        return tuple((-rows.get(each, PhaseRow()).total, each[-1]) for each in outer)

    return sorted(rows.items(), key=lambda pair: place(pair[0]))


def _in_a_line(stretch: Stretch) -> str:
    top = [(path[0], row.total) for path, row in _in_order(stretch.rows) if len(path) == 1]
    parts = ", ".join(f"{name} {took / NS:.3f}" for name, took in [*top, (OTHER, stretch.other)])
    return f"{stretch.wall / NS:.3f} s ({parts})"


def _plain(stretch: Stretch) -> dict[str, Any]:
    def as_rows(rows: dict[Path, PhaseRow]) -> list[dict[str, Any]]:
        return [
            {
                "path": list(path),
                "total_s": row.total / NS,
                "self_s": row.own / NS,
                "calls": row.calls,
                "tokens": row.tokens,
            }
            for path, row in _in_order(rows)
        ]

    return {
        "num_steps": stretch.num_steps,
        "first_step": stretch.first_step,
        "last_step": stretch.last_step,
        "wall_s": stretch.wall / NS,
        "phases": as_rows(stretch.rows),
        "other_s": stretch.other / NS,
        "beside": as_rows(stretch.beside),
    }
