"""The log of sampled completions: rollouts.jsonl in the run's folder, one line for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlcore.config.plain import MAX_DEPTH
from rlcore.loggers import turns_of
from rlcore.loggers.jsonl import JsonLines
from rlcore.types import Episodes, without_none

if TYPE_CHECKING:
    from rlcore.ranks import Ranks
    from rlcore.rewards.score import Scored
    from rlcore.types import Prompt, Trajectories

Row = dict[str, Any]
TRANSCRIPT = "transcript"


class Rollouts:
    """Collects completions that are scored between two yields of the trainer, and writes them at the yield.

    Ranks are only known to meet at yields, so each of them may score any number of batches in between. Lines are in
    the order of the calls. If `Ranks.share` split the prompts of a call among ranks, its lines are in the order of the
    prompts, whatever the number of processes.

    Args:
        keep: `run.rollouts`: the number of completions to keep of each step (the first ones), or none, or all.
        ranks: this process's place among the others.
        folder: the run's folder.
    """

    def __init__(self, keep: int | Literal["none", "all"], ranks: Ranks, folder: Path) -> None:
        self._limit = {"none": 0, "all": None}[keep] if isinstance(keep, str) else keep
        self._ranks, self._lines = ranks, JsonLines(folder / "rollouts.jsonl")
        self._rows: list[tuple[tuple[int, ...], Row]] = []
        self._batches: list[list[Row]] = []
        self._num_calls, self._num_groups, self._is_paused = 0, 0, False

    def add(self, prompts: Sequence[Prompt], batch: Trajectories, scored: Scored, *, group: int = 1) -> None:
        """Collect a batch that this rank sampled for training; `group` consecutive rows continue one prompt."""
        if self._is_paused:
            return
        batch_rows, first = list[Row](), self._num_groups
        self._batches.append(batch_rows)
        self._num_calls += 1
        self._num_groups += -(-len(prompts) // group) * self._ranks.world if group > 1 else 0
        room = len(prompts) if self._limit is None else min(self._limit - len(self._rows), len(prompts))
        if room <= 0:
            return
        lengths, ended = batch.num_actions[:room].tolist(), batch.ended[:room].tolist()
        columns: dict[str, Sequence[float | None]] = {}
        if "versions" in batch:  # of `run.asynchronous`
            columns["version"] = batch["versions"][:room].tolist()
        if scored.by_name:
            columns["reward"] = scored.totals[:room]
        if len(scored.by_name) > 1:
            columns |= {f"reward/{name}": values for name, values in scored.by_name.items()}
        for i, prompt in enumerate(prompts[:room]):
            row = prompt_columns(prompt) | {"output": scored.outputs[i], "length": lengths[i], "ended": ended[i]}
            row |= episode_columns(batch, i)
            if group > 1:
                row["group"] = first + i // group * self._ranks.world + self._ranks.rank
            row |= {name: values[i] for name, values in columns.items()}
            if columns_of_prompt := {name: value for name, value in prompt.columns.items() if is_plain(value)}:
                row["columns"] = columns_of_prompt
            batch_rows.append(row)
            self._rows.append(((self._num_calls, i // group, self._ranks.rank, i % group), row))

    def note(self, name: str, values: Sequence[float], *, back: int = 1) -> None:
        """Add a number, such as the advantage, to each completion of a batch that `add` received since `write`.

        Args:
            name: the name of the column.
            values: one for each completion.
            back: 1 for the last batch, 2 for the one before, and so on.
        """
        for row, value in zip(self._batches[-back], values, strict=False):  # the first ones may be all that are kept
            row[name] = value

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Collect nothing within the block: completions of evaluations are in completions.jsonl."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def write(self, step: int) -> None:
        """Write the completions that all ranks have collected since the last call; all ranks call this together."""
        mine, self._rows, self._batches = self._rows, [], []
        self._num_calls = self._num_groups = 0
        if self._limit == 0:
            return
        rows = sorted(self._ranks.gather_to_main(mine), key=lambda pair: pair[0])
        if self._ranks.is_main:
            self._lines.add(step, [row for _, row in rows[: self._limit]])

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Do nothing: this object is among the loggers only to be closed with them."""

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Do nothing, as `metrics`."""

    def close(self, error: BaseException | None) -> None:  # noqa: ARG002 (a logger's signature)
        """Write the lines that could not be written before.

        Raises:
            OSError: they still cannot be written.
        """
        self._lines.flush()


def prompt_columns(prompt: Prompt) -> Row:
    """Return the first columns of a row: the prompt's text and, of a conversation, its messages."""
    source = {"source": prompt.source} if prompt.source else {}
    if prompt.messages is None:
        return {"prompt": prompt.text, **source}
    messages = list(map(without_none, prompt.messages))
    if not is_plain(messages):  # images and other objects are named, such as [image]
        messages = [{"role": role, "content": text} for role, text in turns_of(messages)]
    return {"prompt": prompt.text, **source, "messages": messages}


def episode_columns(batch: Trajectories, row: int) -> Row:
    """Return the columns of an episode: who wrote what, and its metrics; none of other trajectories."""
    if not isinstance(batch, Episodes):
        return {}
    return {TRANSCRIPT: batch.arguments[TRANSCRIPT][row], **{key: each[row] for key, each in batch.numbers.items()}}


def is_plain(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Return whether JSON represents `value` without loss, with lists and mappings nested at most `depth` deep."""
    if isinstance(value, Mapping):
        return depth > 0 and all(isinstance(key, str) and is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | int | float)
