"""Failed episodes of a round, with their transcripts if they end the run, and tools that nearly always fail."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.ranks import Ranks
from rlcore_environments.batch import transcript_of
from rlcore_environments.calls import thread_advice
from rlcore_environments.episode import FAILED, Episode

log = get_logger("environments")
FILE = "failed_episodes.jsonl"
"""The file in a run's folder with the episodes because of which it ended, one line for each."""


LEAST_CALLS, LARGEST_SHARE = 8, 0.9
"""A tool nearly always fails if, of so many calls, a larger share has the same error."""
_TOOL_ERROR = re.compile(r"error: (\S+) (raised \w+|did not return)")


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


class ToolErrors:
    """Counts how the calls of each tool end, and warns once of a tool nearly all of whose calls raise alike.

    Args:
        name: the environment's name, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name, self._warned = name, set[str]()
        self._calls, self._errors = Counter[str](), dict[str, Counter[str]]()
        self._last = dict[tuple[str, str], str]()  # an error of each tool and kind

    def note(self, episodes: Sequence[Episode]) -> None:
        """Count the results in the messages of episodes that are over."""
        for message in (message for episode in episodes for message in episode.messages):
            tool = message.get("name")
            if not isinstance(tool, str) or message["role"] == "assistant" or tool in self._warned:
                continue
            self._calls[tool] += 1
            found = _TOOL_ERROR.match(message["content"])
            errors = self._errors.setdefault(tool, Counter())
            if found is not None and found[1] == tool:
                errors[found[2]] += 1
                self._last[tool, found[2]] = message["content"].removeprefix("error: ")
        for tool in [tool for tool, count in self._calls.items() if count >= LEAST_CALLS]:
            num_calls, errors = self._calls.pop(tool), self._errors.pop(tool)  # so that later ones count on their own
            for kind, count in errors.most_common(1):
                if count > LARGEST_SHARE * num_calls:
                    self._warn(tool, count, num_calls, self._last[tool, kind])

    def _warn(self, tool: str, count: int, num_calls: int, error: str) -> None:
        self._warned.add(tool)
        advice = thread_advice(error).removeprefix("; ")
        log.warning(
            "nearly all calls of a tool fail alike, and the policy reads the error as their result", tool=tool,
            failed=count, of=num_calls, error=error[:300], environment=self._name,
            **({"remedy": advice} if advice else {}),
        )  # fmt: skip


def _row(episode: Episode) -> dict[str, Any]:
    prompt = episode.prompt
    asked: dict[str, Any] = {} if prompt.messages is None else {"messages": list(prompt.messages)}
    return {
        "prompt": prompt.text, **asked, "transcript": transcript_of(episode), "failure": episode.failure,
        "columns": dict(prompt.columns),
    }  # fmt: skip
