"""Counts of outputs that a reward could not judge, in warnings."""

from __future__ import annotations

from threading import Lock

from rlcore.logging import get_logger

log = get_logger("rewards")
GROWTH = 10
"""A count is logged again when it is so many times as large as the last logged one."""


class Tally:
    """Counts events of a reward and logs them: the first, whenever the number has grown tenfold, and at the end.

    Args:
        reward: name of the reward.
    """

    def __init__(self, reward: str) -> None:
        self.reward, self.seen = reward, 0
        self.counts: dict[str, int] = {}
        self._logged: dict[str, int] = {}
        self._lock = Lock()

    def add(self, seen: int, counts: dict[str, int]) -> None:
        """Count a call.

        Args:
            seen: number of its outputs.
            counts: number of events in it, by what happened, such as "outputs have no answer that can be parsed".
        """
        with self._lock:
            self.seen += seen
            for what, number in counts.items():
                self.counts[what] = self.counts.get(what, 0) + number
                if self.counts[what] >= max(1, GROWTH * self._logged.get(what, 0)):
                    self._log(what)

    def close(self) -> None:
        """Log the counts that have grown since they were logged."""
        with self._lock:
            for what, number in self.counts.items():
                if number > self._logged.get(what, 0):
                    self._log(what)

    def _log(self, what: str) -> None:
        self._logged[what] = self.counts[what]
        log.warning(what, reward=self.reward, count=self.counts[what], of=self.seen)
