"""Loggers: send metrics and completions to every logger of a run; a logger that raises is dropped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rlcore.components import describe_error
from rlcore.logging import get_logger
from rlcore.plugins.observers import Fence
from rlcore.profiling import phase

if TYPE_CHECKING:
    from rlcore.protocols import Logger

__all__ = ["Loggers", "display_row", "episode_metrics", "log", "main_metrics", "place_in", "turns_of"]
log = get_logger("rlcore.loggers")
MAX_METRICS = 5
"""Metrics in a line of a step for which the trainer names none."""


class Loggers(list["Logger"]):
    """All loggers of a run; an error of a logger is logged, and the logger is closed and not called again.

    Args:
        loggers: the initial loggers.
        fence: records which loggers were dropped.

    Raises:
        PluginError: by every method, if RLCORE_STRICT_PLUGINS is set and a logger raises.
    """

    def __init__(self, loggers: Iterable[Logger] = (), *, fence: Fence | None = None) -> None:
        super().__init__(loggers)
        self._fence = fence or Fence()
        self._names: dict[int, str] = {}
        self._step = 0

    def add(self, logger: Logger, name: str) -> None:
        """Add a logger; `name` is its name in messages."""
        self.append(logger)
        self._names[id(logger)] = name

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Send the metrics of a training step or of an evaluation to every logger."""
        self._step = step
        self._call("metrics", step, dict(metrics))

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Send evaluation samples to every logger."""
        self._step = step
        self._call("completions", step, rows)

    def close(self, error: BaseException | None) -> None:
        """Close every logger, even if another one raises."""
        try:
            self._call("close", error)
        finally:
            self.clear()

    def _call(self, method: str, *arguments: object) -> None:
        for logger in list(self):
            name, drop = self._name(logger), partial(self._drop, logger, method)
            event = "logger dropped for the rest of the run"
            with self._fence.around(name, method, self._step, event=event, drop=drop), phase("log"), phase(name):
                getattr(logger, method)(*arguments)

    def _name(self, logger: Logger) -> str:
        return self._names.get(id(logger)) or f"{type(logger).__module__}:{type(logger).__qualname__}"

    def _drop(self, logger: Logger, method: str, error: BaseException) -> None:
        self[:] = [other for other in self if other is not logger]
        if method != "close":
            try:
                logger.close(error)
            except (Exception, SystemExit) as again:  # noqa: BLE001  # as above
                log.debug(
                    "the dropped logger could not be closed either",
                    dropped=self._name(logger),
                    error=describe_error(again),
                )


def place_in(headline: Sequence[str], name: str) -> int:
    """Return the index of the first entry that is a metric's name or its group, such as `toxicity/`, or the length.

    Args:
        headline: names of metrics, and of groups with a slash at the end.
        name: the metric.
    """
    places = (i for i, entry in enumerate(headline) if name == entry or (entry[-1:] == "/" and name.startswith(entry)))
    return next(places, len(headline))


def main_metrics(names: Iterable[str], headline: Sequence[str]) -> list[str]:
    """Return the metrics that the trainer names, in its order, or else the first ones."""
    found = sorted(names, key=lambda name: place_in(headline, name))
    return [name for name in found if place_in(headline, name) < len(headline)] or found[:MAX_METRICS]


def episode_metrics(metrics: Mapping[str, float]) -> list[str]:
    """Return the metrics of episodes for a line: their turns and success, and then the ends that occurred."""
    usual = ("episode/turns", "episode/success")
    shown = [name for name in metrics if name.startswith(usual) or (name.startswith("episode/") and metrics[name])]
    return sorted(shown, key=lambda name: not name.startswith(usual))


def display_row(row: Mapping[str, object]) -> dict[str, Any]:
    """Return a row of completions for people: the prompt of a conversation is its messages, not the rendered template.

    Args:
        row: a row of completions.jsonl or rollouts.jsonl, or one that `Logger.completions` receives.

    Returns:
        The row without `messages` and `transcript`. If it had messages, its `prompt` has a line `role: text` for each
        of them; if it had a transcript, so has its `output`, with the reward of each turn.
    """
    shown = {key: value for key, value in row.items() if key not in ("messages", "transcript")}
    if turns := turns_of(row.get("messages")):
        shown["prompt"] = _lines(turns)
    if row.get("transcript"):
        shown["output"] = _transcript(row["transcript"])
    return shown


def _transcript(transcript: Any) -> str:
    """Return who said what in an episode, one line for each message, with the reward of each turn."""
    turns = turns_of(transcript)
    rewards = [each.get("reward") for each in transcript if isinstance(each, Mapping)] if turns else []
    known = [f" ({reward:+g})" if isinstance(reward, int | float) else "" for reward in rewards]
    return _lines([(role + reward, text) for (role, text), reward in zip(turns, known, strict=True)])


def _lines(turns: Sequence[tuple[str, str]]) -> str:
    return "\n".join(f"{role}: {text}" for role, text in turns)


def turns_of(messages: object) -> list[tuple[str, str]]:
    """Return the role and the text of each message; none if `messages` is no list of mappings."""
    if not isinstance(messages, Sequence) or isinstance(messages, str):
        return []
    return [(str(each.get("role", "")), _text(each)) for each in messages if isinstance(each, Mapping)]


def _text(message: Mapping[str, object]) -> str:
    """Return the content of a message, and its calls of tools as JSON."""
    calls = message.get("tool_calls")
    return "\n".join(filter(None, [_content(message.get("content")), json.dumps(calls, default=str) if calls else ""]))


def _content(content: object) -> str:
    """Return the content of a message as text: that of its parts, and what other parts are, such as [image]."""
    if isinstance(content, str) or content is None:
        return content or ""
    if isinstance(content, Sequence):
        return "\n".join(
            str(part.get("text") or f"[{part.get('type', 'part')}]") if isinstance(part, Mapping) else str(part)
            for part in content
        )
    return str(content)
