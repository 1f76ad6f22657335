"""Failed episodes of a round: how many there were, and their transcripts if they end the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.ranks import Ranks
from rlcore_environments.batch import transcript_of
from rlcore_environments.episode import FAILED, Episode

log = get_logger("environments")
FILE = "failed_episodes.jsonl"
"""The file in a run's folder with the episodes because of which it ended, one line for each."""


class EpisodesFailed(RLCoreError, RuntimeError):
    """More episodes failed than `data.episodes.max_failed` allows."""


class Failures:
    """Counts the episodes that this process plays, and keeps those that failed until the round is checked.

    Args:
        name: the environment's name, for messages.
        max_failed: the largest share of episodes that may fail (`data.episodes.max_failed`).

    Attributes:
        run: the run, once it has begun.
    """

    def __init__(self, name: str, max_failed: float) -> None:
        self.run: RunView | None = None
        self._name, self._max_failed, self._has_warned = name, max_failed, False
        self._num_played, self._failed = 0, list[Episode]()

    def note(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that are over; the first that fail are logged."""
        failed = [episode for episode in episodes if episode.end == FAILED]
        self._num_played += len(episodes)
        self._failed += failed
        if failed and not self._has_warned:
            self._has_warned = True
            log.warning(
                "episodes failed; they have no score, and nothing is learned from them", failed=len(failed),
                of=len(episodes), first=failed[0].describe(),
            )  # fmt: skip

    def check(self, ranks: Ranks) -> None:
        """Check the episodes that all processes have noted since the last call; all call together.

        If too many of them failed, or all, their transcripts are written to the run's folder.

        Raises:
            EpisodesFailed: a larger share of them failed than is allowed.
        """
        num_played, failed, self._num_played, self._failed = self._num_played, self._failed, 0, []
        of = sum(ranks.gather([num_played]))
        found = ranks.gather([(len(failed), failed[0].failure)] if failed else [])
        count = sum(number for number, _ in found)
        is_over = count > self._max_failed * of
        if not is_over and (not count or count < of):
            return
        place = self._write(failed, ranks)
        if not is_over:
            log.warning("all episodes failed", episodes=of, first=found[0][1], transcripts=place or "not written")
            return
        raise EpisodesFailed(
            f"{count} of {of} episodes of '{self._name}' failed, more than data.episodes.max_failed = "
            f"{self._max_failed:g} allows. The first: {found[0][1]}"
            + (f". Transcripts of all that failed: {place}" if place else "")
        )

    def _write(self, failed: Sequence[Episode], ranks: Ranks) -> str:
        """Append the episodes to the file, and return where it is; empty without a run."""
        if self.run is None:
            return ""
        step, path = self.run.step, self.run.dir / FILE
        self.run.keep_folder()
        rows = ranks.gather_to_main([{"step": step, **_row(episode)} for episode in failed])
        if not ranks.is_main:
            return str(path)
        try:
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, default=str) + "\n" for row in rows)
        except OSError as error:
            return f"{path} could not be written ({error.strerror})"
        return str(path)


def _row(episode: Episode) -> dict[str, Any]:
    prompt = episode.prompt
    asked: dict[str, Any] = {} if prompt.messages is None else {"messages": list(prompt.messages)}
    return {
        "prompt": prompt.text, **asked, "transcript": transcript_of(episode), "failure": episode.failure,
        "columns": dict(prompt.columns),
    }  # fmt: skip
