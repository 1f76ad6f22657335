"""Sample and score a round, with reward functions running while the policy is still sampling, and store rollouts.

If the sampler reports finished sub-batches, a worker thread scores them while sampling continues. Plain functions run
there one after another; coroutines run concurrently on the event loop of `rlcore.rewards.values`. The thread ends with
the call.

Also in this file: the log of sampled completions: rollouts.jsonl in the run's folder, one line for each.
"""

from __future__ import annotations

import contextvars
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import attrs
import torch

from rlcore.config.options import MAX_DEPTH
from rlcore.errors import EmptyStore
from rlcore.loggers import turns_of
from rlcore.loggers.jsonl import JsonLines
from rlcore.logging import get_logger
from rlcore.profiling import phase, timed
from rlcore.rewards.combine import RewardBatch, Rewards, Scored, Scorer, to_scored
from rlcore.rewards.values import Call
from rlcore.sampling import takes
from rlcore.settings import TrainConfig
from rlcore.types import Episodes, Prompt, State, Trajectories, without_none

if TYPE_CHECKING:
    from rlcore.ranks import Ranks


PATIENCE_S = 1.0
"""How long Ctrl-C waits for a reward function in its thread, which cannot be interrupted."""


def overlaps(config: TrainConfig, sampler: Callable[..., Trajectories]) -> bool:
    """Return whether rewards are computed while sampling continues; warn if `run.overlap_rewards` has no effect."""
    if not config.run.overlap_rewards:
        return False
    reports = takes(sampler, "on_batch")
    if not reports or not config.gen.batch_size:
        why = (
            "gen.batch_size = 0 samples all prompts at once"
            if reports
            else "the sampler reports no finished sub-batches"
        )
        get_logger("rollout").warning(
            "run.overlap_rewards has no effect: rewards are computed after sampling", reason=why
        )
    return reports


def collect(
    sample: Callable[..., Trajectories], scorer: Scorer, prompts: Sequence[Prompt], *, overlap: bool
) -> tuple[Trajectories, Scored]:
    """Continue each prompt once and score the completions.

    Args:
        sample: called as `sample(prompts)`, or as `sample(prompts, on_batch=...)` to report sub-batches.
        scorer: calls the reward functions.
        prompts: B prompts.
        overlap: score sub-batches while later ones are being sampled. Numbers and errors equal those of scoring the
            whole batch afterwards, provided that the functions score each sample by itself.

    Raises:
        RewardError: a reward function raised or returned an unusable value; sampling then stops early.
        DataError: a sequence without a chosen token.
    """
    begun = time.perf_counter()
    if overlap and scorer.rewards is not None:
        with _Overlap(scorer, scorer.rewards, prompts) as overlapped:
            batch = sample(prompts, on_batch=overlapped.begin)
            sampled = time.perf_counter()
            result = overlapped.finish(batch)
    else:
        batch = sample(prompts)
        sampled = time.perf_counter()
        result = scorer(prompts, batch)
    times = {"time/sample_s": sampled - begun, "time/score_s": time.perf_counter() - sampled}
    return batch, attrs.evolve(result, times=times)


@attrs.define(eq=False)
class _Part:
    """A sub-batch that is being scored.

    Attributes:
        rows: indices of its samples in the batch.
        outputs: their texts.
        output_tokens: the token ids of each.
        call: the pending calls of the reward functions.
        rewards: their checked results, None before they are read.
    """

    rows: Sequence[int]
    outputs: Sequence[str]
    output_tokens: Sequence[Sequence[int]]
    call: Future[Call] = attrs.field(factory=Future)
    rewards: RewardBatch | None = None


class _Overlap:
    """Scores sub-batches in order of arrival, in a thread that lives as long as the `with` block.

    The thread has the caller's context variables and device.
    """

    def __init__(self, scorer: Scorer, rewards: Rewards, prompts: Sequence[Prompt]) -> None:
        self._scorer, self._rewards, self._prompts = scorer, rewards, prompts
        self._parts: list[_Part] = []
        self._waiting: queue.SimpleQueue[_Part | None] = queue.SimpleQueue()
        self._device: torch.device | None = None
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._work,), name="rlcore-overlap", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for part in self._parts:
            part.call.cancel()  # if it has not started
        self._waiting.put(None)
        self._thread.join(None if error is None or isinstance(error, Exception) else PATIENCE_S)
        for part in self._parts:
            if part.call.done() and not part.call.cancelled() and part.call.exception() is None:
                part.call.result().cancel()

    @timed("reward")
    def begin(self, rows: Sequence[int], batch: Trajectories) -> None:
        """Queue the samples at `rows` for scoring.

        Args:
            rows: K indices in the batch.
            batch: K trajectories.

        Raises:
            RewardError: a function failed on earlier samples.
            DataError: a sequence without a chosen token.
        """
        outputs = self._scorer.decode(self._prompts, batch, rows)
        self._device = batch.tokens.device
        part = _Part(list(rows), outputs, batch.action_tokens)
        self._parts.append(part)
        self._waiting.put(part)
        for earlier in self._parts:
            if earlier.rewards is None and earlier.call.done() and earlier.call.result().is_done:
                earlier.rewards = self._rewards.read(earlier.call.result())

    @timed("reward")
    def finish(self, batch: Trajectories) -> Scored:
        """Score the samples that the sampler has not reported, and wait for all results."""
        reported = {row for part in self._parts for row in part.rows}
        left = [row for row in range(len(batch)) if row not in reported]
        if left:
            self.begin(left, batch.rows(torch.tensor(left, device=batch.tokens.device)))
        outputs = [""] * len(batch)
        results: list[tuple[Sequence[int], RewardBatch]] = []
        for part in self._parts:
            with phase("awaiting"):
                call = part.call.result()
            results.append((part.rows, self._rewards.read(call) if part.rewards is None else part.rewards))
            for row, output in zip(part.rows, part.outputs, strict=True):
                outputs[row] = output
        return to_scored(batch, outputs, RewardBatch.together(results, batch.num_actions.tolist()))

    def _work(self) -> None:
        while (part := self._waiting.get()) is not None:
            if self._device is not None and self._device.index is not None:
                torch.accelerator.set_device_index(self._device.index)
            if not part.call.set_running_or_notify_cancel():
                continue
            try:
                call = self._rewards.begin(
                    self._prompts, part.outputs, tokenizer=self._scorer.tokenizer, output_tokens=part.output_tokens,
                    where=self._scorer.where, rows=part.rows,
                )  # fmt: skip
            except BaseException as error:  # noqa: BLE001  raised again where the result is awaited
                part.call.set_exception(error)
            else:
                part.call.set_result(call)


class MemoryStore:
    """Keeps trajectories in memory, in the order in which they were appended."""

    def __init__(self) -> None:
        self._parts: list[Trajectories] = []

    def append(self, batch: Trajectories) -> None:
        """Add a batch; all batches must have the same columns."""
        self._parts.append(batch)

    def take(self) -> Trajectories:
        """Return all sequences as one batch and empty the store.

        Raises:
            EmptyStore: nothing has been appended since the last call.
        """
        if not self._parts:
            raise EmptyStore("the rollout store is empty: append a batch before taking one")
        parts, self._parts = self._parts, []
        device = parts[-1].tokens.device  # batches restored from a checkpoint lie on the CPU
        return parts[0] if len(parts) == 1 else Trajectories.concat([part.to(device) for part in parts])

    def __len__(self) -> int:
        return sum(len(part) for part in self._parts)

    def state_dict(self) -> State:
        """Return all batches."""
        return {"parts": [attrs.asdict(part, recurse=False) for part in self._parts]}

    def load_state_dict(self, state: State) -> None:
        """Restore the batches from `state_dict`."""
        self._parts = [Trajectories(**part) for part in state["parts"]]


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

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
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


def is_plain(value: object, depth: int = MAX_DEPTH) -> bool:
    """Return whether JSON represents `value` without loss, with lists and mappings nested at most `depth` deep."""
    if isinstance(value, Mapping):
        return depth > 0 and all(isinstance(key, str) and is_plain(item, depth - 1) for key, item in value.items())
    if isinstance(value, list | tuple):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    return value is None or isinstance(value, str | int | float)
