"""Columns of rows that move over a run: `data.episodes.curriculum`.

A value follows from the step and the last metrics of the run alone, both of which every checkpoint has, so that a
resumed run goes on exactly.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlcore.errors import ConfigError
from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.safe_text import show

log = get_logger("environments")
OPTION = "data.episodes.curriculum"
SUCCESS, FAILED = "episode/success", "episode/failed"
ROUNDING = 1e-6
"""By how much the mean of equal values may differ from them, in units of `by`."""
KEYS = ("from", "to", "over", "success", "by")
FORMS = "{from: 1, to: 5, over: 100} or {from: 1, to: 5, success: 0.8, by: 1}"
Number = int | float


@attrs.frozen
class Move:
    """How one value moves.

    Attributes:
        name: the column.
        first: its first value.
        last: its last value; whole numbers if both are.
        over: steps after which it is reached; 0 if `success` decides.
        success: share of successful episodes of a round after which the value moves.
        by: by how much, towards `last`.
    """

    name: str
    first: Number
    last: Number
    over: int = 0
    success: float = 0.0
    by: Number = 1

    def value(self, step: int, metrics: Mapping[str, float]) -> Number:
        """Return the value for the next step.

        Args:
            step: steps that are done.
            metrics: the last value of each metric of the run; a success that no episode has stated counts as 0.
        """
        if self.over:
            done = min(step, self.over)
            if isinstance(self.first, int) and isinstance(self.last, int):
                distance = abs(self.last - self.first) * done // self.over
                return self.first + (distance if self.last >= self.first else -distance)
            return self.last if done == self.over else self.first + (self.last - self.first) * (done / self.over)
        before = metrics.get(f"curriculum/{self.name}")
        if before is None:
            return self.first
        moves = math.ceil(abs(before - self.first) / self.by - ROUNDING)
        moves += metrics.get(SUCCESS, 0.0) >= self.success
        way = moves * self.by
        if way >= abs(self.last - self.first):
            return self.last
        return self.first + (way if self.last >= self.first else -way)


class Curriculum:
    """The moving values of a run.

    Args:
        given: the option.

    Raises:
        ConfigError: it has none of the forms.

    Attributes:
        run: the run, once it has begun.
    """

    def __init__(self, given: Any) -> None:
        self.run: RunView | None = None
        self._has_warned = False
        if given is not None and not isinstance(given, Mapping):
            raise ConfigError(f"{OPTION} = {show(given)}: give a mapping from names of columns to {FORMS}")
        self.moves = [_move(str(name), move) for name, move in (given or {}).items()]

    def _warn(self, moves: Sequence[Move]) -> None:
        self._has_warned = True
        for move in moves:
            log.warning(
                "a value of the curriculum stays at its first one until an episode succeeds, and none has stated in "
                "its info whether it did: set info={'success': ...} in the last Step, or give `over`",
                option=f"{OPTION}.{move.name}", value=move.first,
            )  # fmt: skip

    @property
    def step(self) -> int:
        """Steps of the run that are done."""
        return 0 if self.run is None else self.run.step

    def check_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that each moving value reaches a row to train on: those that have the column keep their own.

        Raises:
            ConfigError: one reaches none.
        """
        for move in self.moves:
            if rows and all(row.get(move.name) is not None for row in rows):
                raise ConfigError(
                    f"{OPTION}.{move.name}: has no effect, since every row to train on has a '{move.name}' of its own, "
                    "which it keeps; leave that column out of the rows, or the option of the environment that fills it"
                )

    def values(self, split: str) -> dict[str, Number]:
        """Return the present value of each column; rows of the split `eval` have the last ones.

        If success decides, and no episode has stated it after the first round, a warning names the value that stays.
        """
        if split == "eval":
            return {move.name: move.last for move in self.moves}
        metrics = {} if self.run is None else self.run.metrics
        if not self._has_warned and SUCCESS not in metrics and metrics.get(FAILED, 1.0) < 1:
            self._warn([move for move in self.moves if not move.over])
        return {move.name: move.value(self.step, metrics) for move in self.moves}


def _move(name: str, given: Any) -> Move:
    where = f"{OPTION}.{name}"
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where} = {show(given)}: give {FORMS}")
    if unknown := sorted(set(map(str, given)) - set(KEYS)):
        near = difflib.get_close_matches(unknown[0], KEYS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(KEYS)}"
        raise ConfigError(f"{where}.{unknown[0]}: no such key; {hint}")
    for key in ("from", "to"):
        if key not in given:
            raise ConfigError(f"{where}: has no `{key}`; give {FORMS}")
        _check(f"{where}.{key}", given[key], "a number", is_fit=True)
    if ("over" in given) == ("success" in given):
        raise ConfigError(f"{where}: give one of `over`, a number of steps, and `success`, a share of the episodes")
    first, last = given["from"], given["to"]
    if "over" in given:
        if "by" in given:
            raise ConfigError(f"{where}.by: has no effect with `over`; leave it out")
        over = given["over"]
        _check(f"{where}.over", over, "a whole number of steps, at least 1", is_fit=isinstance(over, int) and over > 0)
        return Move(name, first, last, over=over)
    success, by = given["success"], given.get("by", 1)
    _check(f"{where}.success", success, "a share above 0, at most 1", is_fit=_is_number(success) and 0 < success <= 1)
    whole = isinstance(first, int) and isinstance(last, int)
    if not whole and "by" not in given:
        raise ConfigError(f"{where}: has no `by`, by which the value moves; give {FORMS}")
    kind = "a whole number above 0, as `from` and `to` are" if whole else "a number above 0"
    _check(f"{where}.by", by, kind, is_fit=_is_number(by) and by > 0 and (not whole or isinstance(by, int)))
    return Move(name, first, last, success=float(success), by=by)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check(where: str, value: Any, kind: str, *, is_fit: bool) -> None:
    if not _is_number(value) or not is_fit:
        raise ConfigError(f"{where} = {show(value)}: must be {kind}")
