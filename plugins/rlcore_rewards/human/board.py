"""The open questions, who is looking at which of them, and the answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import attrs

from rlcore_rewards.human.judgement import (
    TAKES_BACK,
    Item,
    Judgement,
    append_judgements,
    append_rows,
    mean_scores,
    read_judgements,
)

Outcome = Literal["kept", "closed", "unknown", "gone"]
"""What became of an answer: kept; not needed any more; its question is not asked yet, as after a restart; or the
restarted run has passed the question's step without asking it."""


@attrs.define
class _Lease:
    """A question that a tab shows: the person's name, and the clock reading until which it stays there."""

    who: str
    until: float


class Board:
    """Gives each open item to as many people as are to judge it; all methods may be called from any thread.

    Args:
        folder: keeps the judgements; those in it are not asked again.
        judges: people who judge each item.
        second_opinion: share of the items that one more person judges, in [0, 1].
        lease_s: how long an item stays with a tab that gives no sign of life.
        before_first: called before the first judgement is kept.
        clock: returns seconds.
    """

    def __init__(
        self,
        folder: Path,
        *,
        judges: int = 1,
        second_opinion: float = 0.0,
        lease_s: float = 120.0,
        before_first: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._judges, self._lease_s = folder, judges, lease_s
        self._second_opinion = second_opinion
        self._before_first, self._clock = before_first, clock
        self._lock = threading.Lock()
        self._open: dict[str, Item] = {}
        self._asking: dict[str, int] = {}
        self._leases: dict[str, dict[str, _Lease]] = {}
        self._judged: dict[str, list[Judgement]] = {}
        self._ids: set[str] = set()
        self._closed: set[str] = set()
        self._made: list[Judgement] = []
        self._step = 0
        for judgement in read_judgements(folder):
            self._note(judgement)

    def ask(self, items: Sequence[Item]) -> None:
        """Open items, until `withdraw` is called as often for them."""
        with self._lock:
            for item in items:
                self._step = max(self._step, item.step)
                self._asking[item.key] = self._asking.get(item.key, 0) + 1
                self._closed.discard(item.key)
                if not self._is_done(item.key):
                    self._open.setdefault(item.key, item)

    def withdraw(self, items: Sequence[Item]) -> None:
        """Close items that nobody waits for any more."""
        with self._lock:
            for item in items:
                self._asking[item.key] -= 1
                if not self._asking[item.key]:
                    del self._asking[item.key]
                    self._open.pop(item.key, None)
                    self._closed.add(item.key)
                    self._leases.pop(item.key, None)

    def take(self, who: str, tab: str) -> Item | None:
        """Return the item that a tab is to show, the same until it is judged; None if there is none for this person."""
        with self._lock:
            self._expire()
            for key, leases in self._leases.items():
                if tab in leases:
                    leases[tab] = _Lease(who, self._clock() + self._lease_s)
                    return self._open[key]
            for key, item in self._open.items():
                leases, judged = self._leases.setdefault(key, {}), self._judged.get(key, [])
                people = {lease.who for lease in leases.values()} | {each.who for each in judged}
                if who not in people and len(leases) + len(judged) < self._needed(key):
                    leases[tab] = _Lease(who, self._clock() + self._lease_s)
                    return item
            return None

    def renew(self, tab: str) -> None:
        """Keep the item of a tab that is still there."""
        with self._lock:
            for leases in self._leases.values():
                if tab in leases:
                    leases[tab].until = self._clock() + self._lease_s

    def leave(self, tab: str) -> None:
        """Give the item of a closed tab back."""
        with self._lock:
            for leases in self._leases.values():
                leases.pop(tab, None)

    def judge(
        self, judgement_id: str, key: str, value: object, *, who: str, tab: str, seconds: float = 0.0,
        step: int | None = None,
    ) -> Outcome:  # fmt: skip
        """Keep a judgement, and return when it is on the disk.

        Returns:
            `kept`; `closed` if the item is judged by enough people, or by this person; `unknown` if nobody has asked
            for it since this process began, which may still happen; `gone` if items of later steps than `step`, that of
            the item as it was shown, have been asked since.

        Raises:
            DataError: the value is no answer to the item's question.
            OSError: the judgement cannot be written; it may be sent again.
        """
        with self._lock:
            if judgement_id in self._ids:  # the page sent it again because the reply was lost
                return "kept"
            item, judged = self._open.get(key), self._judged.get(key, [])
            if item is None and key not in self._closed and not (judged and self._is_done(key)):
                return "unknown" if step is None or self._step <= step else "gone"
            if item is None or who in {each.who for each in judged}:
                self._leases.get(key, {}).pop(tab, None)
                return "closed"
            item.check(value)
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            judgement = Judgement(judgement_id, item, value, who, when, seconds)
            if not self._ids:
                self._before_first()
            append_judgements(self._folder, [judgement])
            self._note(judgement)
            self._made.append(judgement)
            self._leases.get(key, {}).pop(tab, None)
            if self._is_done(key):
                del self._open[key]
                self._leases.pop(key, None)
            return "kept"

    def take_back(self, request_id: str, *, who: str, tab: str) -> Item | None:
        """Take back the last judgement of a person, and return its item, which the tab shows again.

        Returns:
            None if this person has made no judgement since the process began, or the run has used it already.

        Raises:
            OSError: the correction cannot be written; it may be sent again.
        """
        with self._lock:
            if request_id in self._ids:  # sent again, because the reply was lost
                return next((self._open[key] for key, leases in self._leases.items() if tab in leases), None)
            last = next((each for each in reversed(self._made) if each.who == who), None)
            if last is None or last.item.key not in self._asking:
                return None
            when = datetime.now(UTC).isoformat(timespec="milliseconds")
            append_rows(self._folder, [{"id": request_id, TAKES_BACK: last.id, "who": who, "when": when}])
            self._ids.add(request_id)
            key = last.item.key
            self._made.remove(last)
            self._judged[key].remove(last)
            self._open.setdefault(key, last.item)
            for leases in self._leases.values():
                leases.pop(tab, None)
            self._leases.setdefault(key, {})[tab] = _Lease(who, self._clock() + self._lease_s)
            return last.item

    def scores(self, item: Item) -> tuple[float | None, ...] | None:
        """Return the mean scores of an item's completions; None if it is not judged by enough people."""
        with self._lock:
            return mean_scores(self._judged[item.key]) if self._is_done(item.key) else None

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of open items, and of all judgements kept."""
        with self._lock:
            return {"open": len(self._open), "judged": sum(map(len, self._judged.values()))}

    def num_waiting(self, who: str) -> int:
        """Return the number of open items that a person has judged, and that another one still has to."""
        with self._lock:
            return sum(any(each.who == who for each in self._judged.get(key, ())) for key in self._open)

    def _note(self, judgement: Judgement) -> None:
        self._ids.add(judgement.id)
        self._judged.setdefault(judgement.item.key, []).append(judgement)

    def _is_done(self, key: str) -> bool:
        return len(self._judged.get(key, [])) >= self._needed(key)

    def _needed(self, key: str) -> int:
        """Return how many people judge an item; which ones get a second opinion depends on their keys alone."""
        return self._judges + (int(key[:8], 16) / 2**32 < self._second_opinion)

    def _expire(self) -> None:
        now = self._clock()
        for leases in self._leases.values():
            for tab in [tab for tab, lease in leases.items() if lease.until <= now]:
                del leases[tab]
