"""The recording of one run, written when the run ends; `run.profile: torch` records torch's operators too.

Also in this file: a profile as a text table, as JSON, and as a Chrome trace; a policy wrapper that times scoring, for
any architecture.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlcore.logging import get_logger
from rlcore.profiling import count_tokens, phase, running
from rlcore.safe_text import write
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_report.profile.recorder import NOTHING, TRACED, Event, PhasePath, PhaseRow, Profile, Stretch

if TYPE_CHECKING:
    from rlcore.protocols import RunView


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


def _row(path: PhasePath, row: PhaseRow, stretch: Stretch) -> str:
    name = "  " * (len(path) - 1) + path[-1]
    each = row.total / 1e6 / max(stretch.num_steps, 1)
    share = 100 * row.total / max(stretch.wall, 1)
    times = f"{row.total / NS:>10.3f}{row.own / NS:>10.3f}{each:>10.2f}{share:>7.1f} %"
    counts = (row.calls, round(row.tokens * NS / max(row.total, 1)))
    calls, speed = (str(count) if count else "" for count in counts)
    return f"{name:<30}{times}{calls:>8}{speed:>12}".rstrip()


def _in_order(rows: dict[PhasePath, PhaseRow]) -> list[tuple[PhasePath, PhaseRow]]:
    """Sort rows so that each phase follows its enclosing phase, siblings by decreasing time."""

    def place(path: PhasePath) -> tuple[tuple[int, str], ...]:
        outer = [path[: i + 1] for i in range(len(path))]
        # A phase that is still open has no row yet, though phases within it may have one.
        return tuple((-rows.get(each, PhaseRow()).total, each[-1]) for each in outer)

    return sorted(rows.items(), key=lambda pair: place(pair[0]))


def _in_a_line(stretch: Stretch) -> str:
    top = [(path[0], row.total) for path, row in _in_order(stretch.rows) if len(path) == 1]
    parts = ", ".join(f"{name} {took / NS:.3f}" for name, took in [*top, (OTHER, stretch.other)])
    return f"{stretch.wall / NS:.3f} s ({parts})"


def _plain(stretch: Stretch) -> dict[str, Any]:
    def as_rows(rows: dict[PhasePath, PhaseRow]) -> list[dict[str, object]]:
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


log = get_logger("profile")
FIRST, COUNT = 2, 2
"""First step of a process whose torch operators are recorded, and the number of such steps. A trace of more steps is
too large to view."""


class Session:
    """The recording of one run on process 0, from its construction to `end`.

    Time that process 0 waits for other processes counts in the phase in which it waits.

    Args:
        run: a run with `run.profile` set.
    """

    def __init__(self, run: RunView) -> None:
        device, self._folder = run.ranks.device, run.dir / "profile"
        self._operators = (
            TorchOperators(self._folder / "operators.json", device) if run.config.run.profile == "torch" else None
        )
        self._profile = Profile(wait=_waiting(device), operators=self._operators)
        self._running = running(self._profile)
        self._running.__enter__()

    def end(self, step: int) -> None:
        """Stop recording after `step` steps, print the table, and write the profile to the run's folder."""
        self._running.__exit__(None, None, None)
        self._profile.close(step)
        try:
            self._folder.mkdir(exist_ok=True)
            if self._operators is not None:
                self._operators.close()
            _write(self._profile, self._folder)
        except OSError as error:  # such as a full disk; an error of the run must not be replaced by this one
            log.warning("the profile could not be written", folder=str(self._folder), reason=str(error))


def _write(profile: Profile, folder: Path) -> None:
    table = make_table(profile)
    with suppress(OSError):
        write(f"{table}trace for chrome://tracing or ui.perfetto.dev: {folder / 'trace.json'}")
    (folder / "table.txt").write_text(table, encoding="utf-8")
    (folder / "phases.json").write_text(as_json(profile), encoding="utf-8")
    (folder / "trace.json").write_text(as_trace(profile), encoding="utf-8")


def _waiting(device: torch.device) -> Callable[[], None] | None:
    """Return a function that synchronizes the device, or None for a CPU, which runs synchronously."""

    def wait() -> None:
        with suppress(torch.AcceleratorError):  # the run's next operation on the device raises it again
            torch.accelerator.synchronize(device)

    return None if device.type == "cpu" else wait


class TorchOperators:
    """Records torch's operators of a few steps, with the phases as ranges, in a separate trace.

    Args:
        file: the trace file that `close` writes.
        device: the device of the run.
    """

    def __init__(self, file: Path, device: torch.device) -> None:
        kinds = torch.profiler.supported_activities()
        activities = {torch.profiler.ProfilerActivity.CPU} if device.type == "cpu" else kinds
        self._file, self._recorder = file, torch.profiler.profile(activities=activities)
        self._is_on, self._is_done = False, False

    def begin_step(self, nth: int) -> bool:
        """Start recording at step `FIRST` and stop after `COUNT` steps; return whether the nth step is recorded."""
        if nth == FIRST:
            self._recorder.start()
            self._is_on = True
        elif nth == FIRST + COUNT:
            self._stop()
        return self._is_on

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return a block that marks a phase in the trace of operators."""
        return torch.profiler.record_function(name) if self._is_on else NOTHING

    def close(self) -> None:
        """Stop recording and write the trace.

        Raises:
            OSError: the file cannot be written.
        """
        self._stop()
        if self._is_done:
            self._recorder.export_chrome_trace(str(self._file))
        else:
            log.warning("no operators were recorded: the run ended before the first recorded step", steps=FIRST)

    def _stop(self) -> None:
        if self._is_on:
            self._recorder.stop()
            self._is_on, self._is_done = False, True


class TimedPolicy:
    """A policy whose calls of `score` and `reference_score` are marked as phases.

    With gradients enabled, a call counts as the phase `forward` within `update`; without gradients, as the phase
    `score`. The cost is negligible while no profile is recorded.

    Reading, setting and deleting attributes, and `isinstance`, act on the wrapped policy. A copy wraps a copy of the
    policy, with separate weights.

    Args:
        policy: the policy that an architecture built (`rlcore.protocols.Policy`).
    """

    __slots__ = ("__wrapped__",)

    def __init__(self, policy: object) -> None:
        object.__setattr__(self, "__wrapped__", policy)

    def score(self, batch: Trajectories, **options: object) -> PolicyOutputs:
        """Return the policy's outputs for `batch`."""
        has_gradients = torch.is_grad_enabled()
        with phase("update" if has_gradients else "score"):
            count_tokens(batch.mask)
            with phase("forward") if has_gradients else NOTHING:
                outputs: PolicyOutputs = self.__wrapped__.score(batch, **options)
        return outputs

    def reference_score(self, batch: Trajectories, **options: object) -> PolicyOutputs:
        """Return the reference's outputs for `batch`."""
        with phase("score"):
            count_tokens(batch.mask)
            outputs: PolicyOutputs = self.__wrapped__.reference_score(batch, **options)
        return outputs

    @property  # type: ignore[misc]  # read-only; makes `isinstance` see the wrapped class
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # raised during unpickling, before __init__
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> TimedPolicy:
        return TimedPolicy(copy.copy(self.__wrapped__))

    def __deepcopy__(self, memo: dict[int, object]) -> TimedPolicy:
        return TimedPolicy(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self) -> tuple[object, ...]:
        return TimedPolicy, (self.__wrapped__,)
